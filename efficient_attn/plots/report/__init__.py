"""The report page: records in, one HTML file out that asks nothing of any other machine."""
