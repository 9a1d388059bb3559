"""JSON over HTTP under ``/v1``: every verb of a client for programs in any language (docs/http.md)."""
