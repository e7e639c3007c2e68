"""The figures of a shuffle service, for people and programs.

status          the figures at one moment
status_json     the figures as JSON
status_page     the figures as a page for a browser
metrics_page    the figures for Prometheus
http            the server of these pages, and a client that fetches the status
"""
