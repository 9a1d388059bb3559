"""The console under ``/console``: a cluster in a browser, with the rights of the client that signed in."""
