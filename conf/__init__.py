"""Hydra configuration: what is compared (attention), at what (workload, task, model, training),
how it is measured (measure), and named combinations of all that (experiment)."""
