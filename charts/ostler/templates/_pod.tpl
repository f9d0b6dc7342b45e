{{/* What the Pods of the control plane have in common. Each takes root and component unless it says otherwise. */}}

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
The spec of a Pod but for its containers and volumes, fit for the restricted level of Pod Security. Also takes token:
whether its containers are given the token of its identity.
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
Copies apart from each other, over nodes and over zones, each version for itself: as wishes, so that a cluster of one node
takes them too. Also takes group where a component has several Deployments.
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

{{/* What selects the Pods of one Deployment. Also takes group where a component has several. */}}
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

{{/* The only place that a container may write to, and what the values mount. Both take the root context. */}}
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

{{/* Asks `ostler healthy`; starting it takes a second of CPU on a bad day, so it is not asked often. Takes component. */}}
{{- define "ostler.healthy" -}}
exec:
  command: [ostler, healthy, {{ .component }}]
periodSeconds: 30
timeoutSeconds: 15
{{- end -}}
