{{/* Names and labels. Each takes the root context, or a dict with "root" and "component" where it says so. */}}

{{/* The name of the chart, cut to what a label may hold. */}}
{{- define "ostler.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The first part of every object's name. 40 characters at most, so that "-<component>" and a hash still fit. */}}
{{- define "ostler.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "ostler.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of what belongs to the whole cluster: two releases of one name in two namespaces must not share it. */}}
{{- define "ostler.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "ostler.fullname" .) -}}
{{- end -}}

{{/* The name of what a process has in the whole cluster. Takes root and component. */}}
{{- define "ostler.clusterComponentName" -}}
{{- printf "%s-%s" (include "ostler.clusterName" .root) .component -}}
{{- end -}}

{{/* Where RunnerPools and runner Pods live. */}}
{{- define "ostler.runnersNamespace" -}}
{{- if eq .Values.runners.namespace .Release.Namespace -}}
{{- fail (printf "runners.namespace: found %q, the release's own namespace; runner Pods run other people's code and need one without Ostler's Secrets: name another" .Values.runners.namespace) -}}
{{- end -}}
{{- .Values.runners.namespace -}}
{{- end -}}

{{/* Labels of an object. Takes root, component where it belongs to one, and group where that has several Deployments. */}}
{{- define "ostler.labels" -}}
{{- $root := .root -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: ostler
{{ include "ostler.selectorLabels" . }}
{{- with .group }}
ostler.dev/worker-group: {{ . }}
{{- end }}
{{- end -}}

{{/*
What selects the Pods of a process, for ever: a Deployment's selector cannot be changed. Takes root and component, which
is web, worker, beat, watch, flower or migrate; all groups of workers have the component "worker".
*/}}
{{- define "ostler.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ostler.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* The name of a process's objects and of its ServiceAccount. Takes root and component. */}}
{{- define "ostler.componentName" -}}
{{- printf "%s-%s" (include "ostler.fullname" .root) .component -}}
{{- end -}}

{{/* The image, by digest where one is given. */}}
{{- define "ostler.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What an IPv4 block is behind NAT64's well-known prefix. */}}
{{- define "ostler.behindNat64" -}}
{{- $parts := splitList "/" . -}}
{{- $bytes := splitList "." (first $parts) -}}
{{- printf "64:ff9b::%x:%x/%d" (add (mul 256 (int (index $bytes 0))) (int (index $bytes 1))) (add (mul 256 (int (index $bytes 2))) (int (index $bytes 3))) (add 96 (int (last $parts))) -}}
{{- end }}
