"""The dashboard: pages about jobs, pools, accounts and repairs for people with a browser and an API token."""
