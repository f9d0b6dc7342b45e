"""The REST API `/api/v1`: a separate application, mounted at `/api`, with its description and documentation pages."""
