"""The REST API: `/api/v1`, its description and its pages, as an application of its own below `/api`."""
