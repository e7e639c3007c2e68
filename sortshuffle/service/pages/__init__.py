"""The figures of a shuffle service, for people and programs.

status          the figures at one moment
status_json     as JSON
status_page     as a page for a browser
metrics_page    for Prometheus
http            the server of these pages, and a client of the status
"""
