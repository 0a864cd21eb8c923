#!/bin/bash
wanted='{"name":"orders","port":8443,"workers":4,"features":["search","export"],"database":{"host":"db.internal","password":"${DB_PASSWORD}"}}'
if jq -n -e --argjson wanted "$wanted" '[inputs] == [$wanted]' /app/service.json; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
