"""fairbox in verl 0.9: the code interpreter as a tool, a whole agent loop, and trajectories as verl's data.

| path | what verl does with it |
| --- | --- |
| `rollout.interop.verl.tool.CodeInterpreterTool` | `class_name` of a tool in the file of `tool_config_path` |
| `rollout.interop.verl.agent_loop.FairboxAgentLoop` | `_target_` in the file of `agent_loop_config_path` |
| `rollout.interop.verl.reward` | `path` of `custom_reward_function`: rewards out of a YAML file |
| `rollout.interop.verl.convert` | `DataProto` and `AgentLoopOutput` out of trajectories |

docs/how-to/verl.md shows each.
"""
