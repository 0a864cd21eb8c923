"""fairbox in SkyRL: trajectories as a `GeneratorOutput`, a generator, and an environment of skyrl-gym.

| path | what SkyRL does with it |
| --- | --- |
| `rollout.interop.skyrl.convert.generator_output` | makes a `GeneratorOutput`; needs no package of SkyRL's |
| `rollout.interop.skyrl.generator.FairboxGenerator` | plays trajectories in place of `SkyRLGymGenerator` |
| `rollout.interop.skyrl.env:FairboxEnv` | `entry_point` of an environment of skyrl-gym |

docs/how-to/skyrl.md shows each.
"""
