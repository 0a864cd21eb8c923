"""deploy/monitoring/alerts.yaml as the object that the Prometheus operator takes.

`python -m tests.k8s.alerts` writes deploy/components/monitoring/rules.yaml anew: kustomize can't wrap a file into a
field, and a component may not read what is outside of its folder.
"""

from __future__ import annotations

import yaml

from tests.k8s.manifests import ROOT, Document

ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yaml"
RULES = ROOT / "deploy" / "components" / "monitoring" / "rules.yaml"
_HEAD = "# Made of deploy/monitoring/alerts.yaml by `python -m tests.k8s.alerts`.\n"


def rule_object(alerts: str) -> Document:
    """A PrometheusRule of the text of a file of rules."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "fairbox", "namespace": "fairbox", "labels": {"app.kubernetes.io/part-of": "fairbox"}},
        "spec": {"groups": yaml.safe_load(alerts)["groups"]},
    }


if __name__ == "__main__":
    made = rule_object(ALERTS.read_text(encoding="utf-8"))
    RULES.write_text(_HEAD + yaml.safe_dump(made, sort_keys=False, width=120), encoding="utf-8")
