{{/* Environment of each process: only the variables that it reads. */}}

{{/* Names of the variables in the Secret. */}}
{{- define "ostler.secretVariables" -}}
OSTLER_DATABASE_URL OSTLER_REDIS_URL OSTLER_GITHUB_APP_ID OSTLER_GITHUB_PRIVATE_KEY OSTLER_WEBHOOK_SECRETS OSTLER_ENCRYPTION_KEYS OSTLER_FLOWER_BASIC_AUTH OSTLER_REDIS_URL_BEAT OSTLER_REDIS_URL_WATCH OSTLER_REDIS_URL_FLOWER
{{- end -}}

{{/* Variables that the chart sets from other values. */}}
{{- define "ostler.computedVariables" -}}
OSTLER_CONNECTION_SHARE OSTLER_CONNECTION_BUDGET OSTLER_WORKER_THREADS OSTLER_ALIVE_FILE OSTLER_KUBECONFIG OSTLER_NAMESPACE OSTLER_ELEVATED_NAMESPACE OSTLER_ALLOWED_POD_SECURITY OSTLER_DISPATCH_URL OSTLER_DISPATCH_CA OSTLER_HOOKS_IMAGE OSTLER_BUILDKIT_IMAGE OSTLER_DIND_IMAGE OSTLER_WEB_HOST OSTLER_WEB_PORT OSTLER_WEB_POLLS_PORT OSTLER_WEB_PRIVATE_PORT OSTLER_WEB_PUBLIC_POLLS OSTLER_WEB_POLLS_TLS_PORT OSTLER_WEB_POLLS_TLS_CERT OSTLER_WEB_POLLS_TLS_KEY OSTLER_WEB_PLAIN_POLLS OSTLER_METRICS_PORT OSTLER_FLOWER_HOST OSTLER_FLOWER_PORT OSTLER_FLOWER_STATE_FILE OSTLER_HALT_DIR
{{- end -}}

{{/* Variables from the Secret. Takes root and variables, a list. */}}
{{- define "ostler.fromSecret" -}}
{{- range $variable := .variables }}
{{- $elsewhere := get $.root.Values.secretRefs $variable | default dict }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $elsewhere.name | default $.root.Values.existingSecret }}
      key: {{ $elsewhere.key | default $variable }}
{{- end }}
{{- end -}}

{{/* OSTLER_REDIS_URL of beat, watch or Flower. Takes root and process. */}}
{{- define "ostler.redisUrl" -}}
{{- $variable := .root.Values.redis.usersPerProcess | ternary (printf "OSTLER_REDIS_URL_%s" (upper .process)) "OSTLER_REDIS_URL" }}
{{- $elsewhere := get .root.Values.secretRefs $variable | default dict }}
- name: OSTLER_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ $elsewhere.name | default .root.Values.existingSecret }}
      key: {{ $elsewhere.key | default $variable }}
{{- end -}}

{{/* Settings from the values. Takes root, and prefixes: the prefixes of the names that this process reads. */}}
{{- define "ostler.settings" -}}
{{- range $name, $value := .root.Values.settings }}
{{- if has $name (splitList " " (include "ostler.secretVariables" $)) }}
{{- fail (printf "settings.%s: it is a secret, which the chart reads only from a Secret: put it into the Secret that existingSecret names, or name another Secret in secretRefs" $name) }}
{{- end }}
{{- if has $name (splitList " " (include "ostler.computedVariables" $)) }}
{{- fail (printf "settings.%s: the chart sets it from other values: set those values, which README.md lists" $name) }}
{{- end }}
{{- $read := false }}
{{- range $prefix := $.prefixes }}
{{- if hasPrefix $prefix $name }}{{ $read = true }}{{ end }}
{{- end }}
{{- if $read }}
- name: {{ $name }}
  {{- /* Helm reads a whole number as a float, and would print a large number as 2.6e+07. */}}
  {{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
  value: {{ int64 $value | quote }}
  {{- else }}
  value: {{ toString $value | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- include "ostler.extraEnv" .root }}
{{- end -}}

{{/* Variables that are not settings, such as those of a proxy. Takes the root context. */}}
{{- define "ostler.extraEnv" -}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Environment of web and of workers. Takes root, and share: the number of Postgres connections of the process. */}}
{{- define "ostler.environment" -}}
{{- $root := .root -}}
{{- include "ostler.fromSecret" (dict "root" $root "variables" (list "OSTLER_DATABASE_URL" "OSTLER_REDIS_URL" "OSTLER_GITHUB_APP_ID" "OSTLER_GITHUB_PRIVATE_KEY" "OSTLER_WEBHOOK_SECRETS" "OSTLER_ENCRYPTION_KEYS")) }}
- name: OSTLER_NAMESPACE
  value: {{ include "ostler.runnersNamespace" $root }}
{{- with include "ostler.elevatedNamespace" $root }}
- name: OSTLER_ELEVATED_NAMESPACE
  value: {{ . }}
- name: OSTLER_ALLOWED_POD_SECURITY
  value: {{ $root.Values.runners.allowedPodSecurity }}
{{- end }}
- name: OSTLER_DISPATCH_URL
  value: {{ include "ostler.dispatchUrl" $root | quote }}
{{- with include "ostler.dispatchCa" $root }}
- name: OSTLER_DISPATCH_CA
  value: {{ . }}
{{- end }}
- name: OSTLER_CONNECTION_SHARE
  value: {{ .share | quote }}
- name: OSTLER_CONNECTION_BUDGET
  value: {{ include "ostler.connectionBudget" $root | quote }}
{{- include "ostler.settings" (dict "root" $root "prefixes" (list "OSTLER_")) }}
{{- end -}}

{{/* Address that runner Pods poll. */}}
{{- define "ostler.dispatchUrl" -}}
{{- if .Values.dispatchUrl -}}
{{- .Values.dispatchUrl -}}
{{- else -}}
{{- printf "%s://%s-polls.%s.svc/runners/v1/dispatch" (.Values.web.tls.enabled | ternary "https" "http") (include "ostler.componentName" (dict "root" . "component" "web")) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* The port of web's metrics and health. */}}
{{- define "ostler.webPrivatePort" -}}
{{- if has (int .Values.metrics.port) (list 8080 8081) -}}
{{- fail (printf "metrics.port: found %d, a port where web serves webhooks, the API or polls: choose another port" (int .Values.metrics.port)) -}}
{{- end -}}
{{- .Values.metrics.port -}}
{{- end -}}
