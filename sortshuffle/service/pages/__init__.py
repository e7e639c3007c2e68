"""What people and programs see of a shuffle service.

status                      its figures at one moment
status_json, status_page    the same as JSON, and for a browser
metrics_page                the same for Prometheus
http                        how pages are asked for, and served
"""
