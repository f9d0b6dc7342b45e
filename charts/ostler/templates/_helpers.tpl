{{/* Names and labels. Each template takes the root context unless its comment names other arguments. */}}

{{/* Name of the chart, shortened to the maximum length of a label value. */}}
{{- define "ostler.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of every object's name: at most 40 characters, so that "-<component>" and a hash still fit. */}}
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

{{/*
Prefix for names of cluster-wide objects. It contains the namespace, because two namespaces can have releases with the
same name.
*/}}
{{- define "ostler.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "ostler.fullname" .) -}}
{{- end -}}

{{/* Name of a process's cluster-wide objects. Takes root and component. */}}
{{- define "ostler.clusterComponentName" -}}
{{- printf "%s-%s" (include "ostler.clusterName" .root) .component -}}
{{- end -}}

{{/* Namespace of RunnerPools and runner Pods. */}}
{{- define "ostler.runnersNamespace" -}}
{{- if eq .Values.runners.namespace .Release.Namespace -}}
{{- fail (printf "runners.namespace: found %q, the release's own namespace; runner Pods run other people's code and need a namespace without Ostler's Secrets: name another namespace" .Values.runners.namespace) -}}
{{- end -}}
{{- .Values.runners.namespace -}}
{{- end -}}

{{/*
Namespace of the pools above the Pod Security level restricted, and of their Pods. Empty if runners.allowedPodSecurity
is restricted.
*/}}
{{- define "ostler.elevatedNamespace" -}}
{{- if ne .Values.runners.allowedPodSecurity "restricted" -}}
{{- $name := .Values.runners.elevatedNamespace | default (printf "%s-elevated" (include "ostler.runnersNamespace" .)) -}}
{{- if has $name (list .Release.Namespace .Values.runners.namespace) -}}
{{- fail (printf "runners.elevatedNamespace: found %q, which is the release's own namespace or runners.namespace: name another namespace" $name) -}}
{{- end -}}
{{- if not .Values.admissionPolicy.enabled -}}
{{- fail (printf "runners.allowedPodSecurity: found %q, which needs admissionPolicy.enabled: without the policies, a worker could give every pool this level" .Values.runners.allowedPodSecurity) -}}
{{- end -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* Every namespace with RunnerPools and runner Pods, separated by commas. */}}
{{- define "ostler.runnerNamespaces" -}}
{{- include "ostler.runnersNamespace" . -}}
{{- with include "ostler.elevatedNamespace" . -}}
{{- printf ",%s" . -}}
{{- end -}}
{{- end -}}

{{/* Label selector of every namespace with runner Pods. */}}
{{- define "ostler.inRunnerNamespaces" -}}
{{- if include "ostler.elevatedNamespace" . -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: In
    values: {{ splitList "," (include "ostler.runnerNamespaces" .) | toJson }}
{{- else -}}
matchLabels:
  kubernetes.io/metadata.name: {{ include "ostler.runnersNamespace" . }}
{{- end -}}
{{- end -}}

{{/*
Name of the ConfigMap with the scripts of runner Pods, which workers create. It contains the digest of the scripts
(k8s_adapters/runners/runner_scripts.py); a test compares both.
*/}}
{{- define "ostler.runnerScripts" -}}
ostler-scripts-3fb87a99d48c19c1
{{- end -}}

{{/*
Labels of an object. Takes root, the component of the object if it has one, and group if the component has several
Deployments.
*/}}
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
Labels that select the Pods of a process. They must never change, because the selector of a Deployment is immutable.
Takes root and component, which is web, worker, beat, watch, flower or migrate. All groups of workers have the component
"worker".
*/}}
{{- define "ostler.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ostler.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Name of a process's objects and of its ServiceAccount. Takes root and component. */}}
{{- define "ostler.componentName" -}}
{{- printf "%s-%s" (include "ostler.fullname" .root) .component -}}
{{- end -}}

{{/* The image, by digest if the values have one, or else by tag. */}}
{{- define "ostler.image" -}}
{{- include "ostler.complete" . -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* IPv6 block that reaches an IPv4 block through the well-known prefix of NAT64. */}}
{{- define "ostler.behindNat64" -}}
{{- $parts := splitList "/" . -}}
{{- $bytes := splitList "." (first $parts) -}}
{{- printf "64:ff9b::%x:%x/%d" (add (mul 256 (int (index $bytes 0))) (int (index $bytes 1))) (add (mul 256 (int (index $bytes 2))) (int (index $bytes 3))) (add 96 (int (last $parts))) -}}
{{- end }}
