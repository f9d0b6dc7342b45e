{{/*
Common parts of the control plane's Pods. Each template takes root and component unless its comment names other
arguments.
*/}}

{{/* Metadata of a Pod. */}}
{{- define "ostler.podMetadata" -}}
labels:
  {{- include "ostler.labels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
The spec of a Pod without its containers and volumes. It meets the restricted level of Pod Security. Also takes token:
whether its containers get the token of its ServiceAccount.
*/}}
{{- define "ostler.podSpec" -}}
serviceAccountName: {{ include "ostler.componentName" . }}
automountServiceAccountToken: {{ .token }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- if not .root.Values.openshift.enabled }}
  {{- range $field, $id := .root.Values.podSecurityContext }}
  {{- if not (kindIs "invalid" $id) }}
  {{ $field }}: {{ int64 $id }}
  {{- end }}
  {{- end }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Spread of replicas over nodes and zones, separately for each version. It is only a preference, so that a cluster with
one node can run them too. Also takes group if a component has several Deployments.
*/}}
{{- define "ostler.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "ostler.groupSelector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end -}}

{{/* Labels that select the Pods of one Deployment. Also takes group if a component has several Deployments. */}}
{{- define "ostler.groupSelector" -}}
{{ include "ostler.selectorLabels" . }}
{{- with .group }}
ostler.dev/worker-group: {{ . }}
{{- end }}
{{- end -}}

{{/* Image and security of a container. Takes the root context. */}}
{{- define "ostler.container" -}}
image: {{ include "ostler.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* The only writable folder of a container, and the volumes of the values. Both templates take the root context. */}}
{{- define "ostler.tmpVolume" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- define "ostler.tmpMount" -}}
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Probe with `ostler healthy`. It runs rarely, because its start can take a second of CPU. Takes component. */}}
{{- define "ostler.healthy" -}}
exec:
  command: [ostler, healthy, {{ .component }}]
periodSeconds: 30
timeoutSeconds: 15
{{- end -}}
