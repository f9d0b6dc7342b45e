{{/* Groups of workers, and the Postgres connections of all processes together. */}}

{{/* Values of a group as JSON. A value that the group lacks comes from `worker`. Takes root and group. */}}
{{- define "ostler.workerValues" -}}
{{- mergeOverwrite (deepCopy .root.Values.worker) (get .root.Values.workers .group | default dict) | toJson -}}
{{- end -}}

{{/*
Number of Postgres connections of a worker: one per thread, or half as many if it serves only the queues github, pools
and retire, as in models/db/connections.py. Takes the values of a group.
*/}}
{{- define "ostler.workerShare" -}}
{{- if without .queues "github" "pools" "retire" -}}
{{- int .threads -}}
{{- else -}}
{{- div (add (int .threads) 1) 2 -}}
{{- end -}}
{{- end -}}

{{/* Maximum number of replicas of a group. Takes the values of a group. */}}
{{- define "ostler.mostWorkers" -}}
{{- if .autoscaling.enabled -}}
{{- int .autoscaling.maxReplicas -}}
{{- else if .keda.enabled -}}
{{- int .keda.maxReplicas -}}
{{- else -}}
{{- int .replicas -}}
{{- end -}}
{{- end -}}

{{/*
The sum of the connection shares of all replicas. Each Deployment counts two Pods more than its replicas. During a
rollout, one new Pod runs beside all old Pods, and one terminating Pod might still run. minReadySeconds prevents a second
terminating Pod.
*/}}
{{- define "ostler.connectionBudget" -}}
{{- $budget := mul 9 (add (int .Values.web.replicas) 2) -}}
{{- $said := list (printf "web %d x 9" (add (int .Values.web.replicas) 2)) -}}
{{- range $group := keys .Values.workers | sortAlpha -}}
{{- $values := include "ostler.workerValues" (dict "root" $ "group" $group) | fromJson -}}
{{- $replicas := add (int (include "ostler.mostWorkers" $values)) 2 -}}
{{- $share := int (include "ostler.workerShare" $values) -}}
{{- $budget = add $budget (mul $replicas $share) -}}
{{- $said = append $said (printf "workers.%s %d x %d" $group $replicas $share) -}}
{{- end -}}
{{- $needed := add $budget 10 -}}
{{- if gt $needed (int64 .Values.postgres.maxConnections) -}}
{{- fail (printf "postgres.maxConnections: found %d, but all processes together may take %d connections (%s; each with two more Pods than replicas, for a rollout) and 10 must stay free: raise max_connections to %d or more, in Postgres and in this value, or lower replicas or threads" (int64 .Values.postgres.maxConnections) $budget (join ", " $said) $needed) -}}
{{- end -}}
{{- $budget -}}
{{- end -}}

{{/* Fails if no group serves a queue, or if a group has two autoscalers. */}}
{{- define "ostler.checkWorkers" -}}
{{- $served := list -}}
{{- range $group := keys .Values.workers | sortAlpha -}}
{{- $values := include "ostler.workerValues" (dict "root" $ "group" $group) | fromJson -}}
{{- $served = concat $served $values.queues -}}
{{- if and $values.autoscaling.enabled $values.keda.enabled -}}
{{- fail (printf "workers.%s: autoscaling and keda are both enabled, and each would undo the changes of the other: disable one of them" $group) -}}
{{- end -}}
{{- range $way := list "autoscaling" "keda" -}}
{{- $bounds := get $values $way -}}
{{- if and $bounds.enabled (gt (int $bounds.minReplicas) (int $bounds.maxReplicas)) -}}
{{- fail (printf "workers.%s.%s: minReplicas %d is more than maxReplicas %d" $group $way (int $bounds.minReplicas) (int $bounds.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $queue := list "dispatch" "github" "pools" "retire" "sweeps" -}}
{{- if not (has $queue $served) -}}
{{- fail (printf "workers: no group serves the queue %s, so its tasks would never run: add it to the queues of a group" $queue) -}}
{{- end -}}
{{- end -}}
{{- end -}}
