"""fairbox in verifiers v1: a harness whose tool is the code interpreter, and a taskset of word problems.

| path | what verifiers does with it |
| --- | --- |
| `rollout.interop.verifiers.harness.FairboxHarness` | plays a rollout, its tool calls in the executor |
| `rollout.interop.verifiers.taskset.FairboxTaskset` | loads the problems; a subclass may load others |

verifiers finds both under the id `fairbox-verifiers`, which is the package `fairbox_verifiers`: its ids are names of
packages, without a dot. docs/how-to/verifiers.md shows each.
"""
