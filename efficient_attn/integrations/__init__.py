"""Any attention variant inside models of other libraries."""
