"""
What people see of a running operator: its metrics, its traces, and its present state.

All of this only listens and asks. It changes nothing; and nothing of it is imported, and nothing is
done for it, unless the settings ask for it. The core knows nothing of this package.

The modules: `tracing` makes spans of OpenTelemetry. `metrics` are the figures for Prometheus:
`meters` describes and counts them, and `series` has their values. `debug` shows the present state
as JSON. `inspection` finds what is shown of an operator when somebody asks.

The metrics have the names that controller-runtime uses. So, the dashboards and alerts of operators
in Go also work for operators in Python. The kind of the objects, in lower case, is the name
of the controller, as in controller-runtime. Kopf adds what controller-runtime does not know:
handlers, daemons, timers, indices, watches. No label is of an object, so the number of series does
not grow with the objects, and no metrics contain names or contents of objects.

What happens often is only counted in plain Python, by the meters; all else is read when somebody
asks for the metrics. The library ``prometheus_client`` makes the text, together with the metrics
that the author has registered in its default registry. Kopf registers nothing there, so operators
in one process do not clash.
"""
