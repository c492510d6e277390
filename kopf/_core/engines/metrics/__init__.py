"""
Metrics: the figures of an operator for Prometheus, under the names that controller-runtime uses.

So the dashboards and alerts of operators in Go are of use for operators in Python, too. The kind of
the objects, in lower case, is the name of the controller, as in controller-runtime. Kopf adds what
controller-runtime does not know: handlers, daemons, timers, indices, watches. No label is of an
object, so the number of series does not grow with the objects.

What happens often is only counted in plain Python, by the meters; all else is read when somebody
asks for the metrics. The library ``prometheus_client`` makes the text, together with the metrics
that the author has registered in its default registry. Kopf registers nothing there, so operators
in one process do not clash.

The modules: `series` has the values of the metrics, and converts them to the types of the library;
`meters` describes the metrics, and counts. Nothing is imported unless the metrics are served.

The package may import the actions, the intents, and the cogs. The package guarantees that no
metrics contain names or contents of objects.
"""
