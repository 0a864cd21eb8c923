"""Folders of the node that stand behind a pod's volumes. One that is emptyDir goes with its pod; a claim's stays.

The size of a folder is not bounded here: a kubelet looks at it now and then and evicts. Those in memory are bounded.
"""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path

from tests.k8s.pods.containers import ContainerPlan, Volume
from tests.k8s.pods.objects import Objects

__all__ = ["Volumes"]


class Volumes:
    """The volumes of all pods, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._pods, self._claims = folder / "pods", folder / "claims"

    def options(self, pod: str, namespace: str, plan: ContainerPlan, objects: Objects) -> list[str]:
        """Makes the folders of a pod, and says how podman mounts them."""
        options = []
        for volume in plan.volumes:
            source = self._folder(pod, namespace, plan, volume, objects)
            if volume.sub_path:
                source /= volume.sub_path
            options += ["--volume", f"{source}:{volume.mount_path}{':ro' if volume.read_only else ''}"]
        return options

    def claim(self, namespace: str, name: str) -> Path:
        """What was written to a claim."""
        return self._claims / f"{namespace}.{name}"

    def remove(self, pod: str) -> None:
        shutil.rmtree(self._pods / pod, ignore_errors=True)

    def _folder(self, pod: str, namespace: str, plan: ContainerPlan, volume: Volume, objects: Objects) -> Path:
        if volume.kind == "persistentVolumeClaim":
            folder = self.claim(namespace, volume.source["claimName"])
            folder.mkdir(parents=True, exist_ok=True)
            _give(folder, plan, 0o2775 if plan.group is not None else 0o755)
            return folder
        folder = self._pods / pod / volume.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _files(volume, namespace, objects).items():
            file = folder / name
            file.write_bytes(content)
            _give(file, plan, int(volume.source.get("defaultMode", 0o644)))
        _give(folder, plan, 0o2777 if plan.group is not None else 0o777)
        return folder


def _give(path: Path, plan: ContainerPlan, mode: int) -> None:
    """To the pod's root, and to its group where it has one."""
    os.chown(path, plan.ids_from, plan.ids_from + (plan.group or 0))
    path.chmod(mode)


def _files(volume: Volume, namespace: str, objects: Objects) -> dict[str, bytes]:
    if volume.kind == "emptyDir":
        return {}
    if volume.kind == "projected":
        raise ValueError(f"volume {volume.name} is projected, which is not understood here")
    name = volume.source["name"] if volume.kind == "configMap" else volume.source["secretName"]
    found = objects.find("ConfigMap" if volume.kind == "configMap" else "Secret", namespace, name)
    if found is None:
        if volume.source.get("optional"):
            return {}
        raise ValueError(f"volume {volume.name}: {volume.kind} {namespace}/{name} does not exist")
    content = {key: str(value).encode() for key, value in (found.get("stringData") or {}).items()}
    for key, value in (found.get("data") or {}).items():
        content[key] = base64.b64decode(value) if volume.kind == "secret" else str(value).encode()
    items = volume.source.get("items")
    return {item["path"]: content[item["key"]] for item in items} if items else content
