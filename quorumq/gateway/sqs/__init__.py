"""The SQS protocol in front of topics: docs/gateway.md says which action is which call of the client."""
