"""Answers over HTTP and MCP: the service, its workers and jobs, and the page of `web`."""
