"""Tests of the commands of container jobs, with a fake API server and with real shells and archives."""
