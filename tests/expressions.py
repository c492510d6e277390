"""
Expressions of PromQL, compared with what an operator serves.

They are not evaluated, but all that they select must be there: the series, and the labels by which
they are grouped. Those labels that Prometheus adds (the job, the pod) always are.
"""
import json
import pathlib
import re

import promql_parser
import yaml
from prometheus_client import parser

EXAMPLE = pathlib.Path(__file__).parents[1] / 'examples' / '21-observability'

ADDED = frozenset({'job', 'namespace', 'instance', 'pod', 'container'})
"""The labels that Prometheus adds to all series in Kubernetes."""

SELECTOR = '{job="$job", namespace="$namespace"}'

KUBEBUILDER = [expr.replace('SELECTOR', SELECTOR) for expr in [
    # controller-runtime-metrics.json
    'controller_runtime_active_workersSELECTOR',
    'sum(rate(controller_runtime_reconcile_totalSELECTOR[5m])) by (instance, pod)',
    'sum(rate(controller_runtime_reconcile_errors_totalSELECTOR[5m])) by (instance, pod)',
    'workqueue_depthSELECTOR',
    *(f'histogram_quantile({quantile}, sum(rate({name}_bucketSELECTOR[5m])) '
      f'by (instance, name, le))'
      for name in ('workqueue_queue_duration_seconds', 'workqueue_work_duration_seconds')
      for quantile in ('0.50', '0.90', '0.99')),
    'sum(rate(workqueue_adds_totalSELECTOR[5m])) by (instance, name)',
    'rate(workqueue_unfinished_work_secondsSELECTOR[5m])',
    'sum(rate(workqueue_retries_totalSELECTOR[5m])) by (instance, name)',
    # controller-resources-metrics.json
    'rate(process_cpu_seconds_total{job="$job", namespace="$namespace", pod="$pod"}[5m]) * 100',
    'process_resident_memory_bytes{job="$job", namespace="$namespace", pod="$pod"}',
]]
"""The expressions of the dashboards of kubebuilder (plugin grafana.kubebuilder.io/v1-alpha)."""


def get_dashboard() -> list[str]:
    dashboard = json.loads((EXAMPLE / 'dashboard.json').read_text())
    return [target['expr'] for panel in dashboard['panels'] for target in panel.get('targets', ())]


def get_alerts() -> list[str]:
    rules = yaml.safe_load((EXAMPLE / 'alerts.yaml').read_text())
    return [rule['expr'] for group in rules['spec']['groups'] for rule in group['rules']]


def parse_text(text):
    """Parse the text of the metrics: the labels and the value of each series, by names."""
    series = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return series


def find_missing(expr, series):
    """Find what the expression selects or groups by, and what is not there."""
    node = promql_parser.parse(expr.replace('$__rate_interval', '5m'))
    return [*iter_missing(node, series)]


def iter_missing(node, series):
    selectors = [*iter_selectors(node)]
    for selector in selectors:
        if not [labels for labels, _ in series.get(selector.name, ()) if matches(selector, labels)]:
            yield str(selector.prettify())
    for labels in iter_groupings(node):
        known = {label for selector in selectors for found, _ in series.get(selector.name, ())
                 for label in found}
        yield from set(labels) - known - ADDED


def matches(selector, labels):
    return all(is_matched(matcher, labels.get(matcher.name, ''))
               for matcher in selector.matchers.matchers if matcher.name not in ADDED)


def is_matched(matcher, value):
    match str(matcher.op):
        case 'MatchOp.Equal':
            return value == matcher.value
        case 'MatchOp.NotEqual':
            return value != matcher.value
        case 'MatchOp.Re':
            return bool(re.fullmatch(matcher.value, value))
        case 'MatchOp.NotRe':
            return not re.fullmatch(matcher.value, value)
    raise ValueError(matcher.op)


def iter_nodes(node):
    yield node
    for name in ('args', 'expr', 'lhs', 'rhs', 'vector_selector', 'param'):
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else [value]:
            if type(child).__module__ == type(node).__module__:
                yield from iter_nodes(child)


def iter_selectors(node):
    return (each for each in iter_nodes(node) if isinstance(each, promql_parser.VectorSelector))


def iter_groupings(node):
    for each in iter_nodes(node):
        if isinstance(each, promql_parser.AggregateExpr) and each.modifier is not None:
            yield each.modifier.labels
