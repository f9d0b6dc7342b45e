"""The REST API `/api/v1`, its OpenAPI description and its documentation pages.

It is an application mounted at `/api`.
"""
