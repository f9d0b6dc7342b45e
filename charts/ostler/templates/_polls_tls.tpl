{{/* Certificate of the port for polls, and the CAs that runner Pods trust. Each template takes the root context. */}}

{{/* "true" if the chart creates the CAs itself, or else empty. */}}
{{- define "ostler.ownCA" -}}
{{- $tls := .Values.web.tls -}}
{{- if and $tls.enabled (not $tls.existingSecret) (not $tls.certManager.issuerRef) -}}
true
{{- end -}}
{{- end -}}

{{/*
What creates the chart's own CAs: "helm", "job", or empty if the chart has no own CA. Helm must read them back from the
cluster at each upgrade, so a Job creates them if this rendering has no cluster.
*/}}
{{- define "ostler.caBy" -}}
{{- if include "ostler.ownCA" . -}}
{{- .Values.web.tls.ownCA.createdBy | default (ternary "helm" "job" (not (empty (lookup "v1" "Namespace" "" "kube-system")))) -}}
{{- end -}}
{{- end -}}

{{/* The Secret with web's certificate. */}}
{{- define "ostler.pollsTlsSecret" -}}
{{- .Values.web.tls.existingSecret | default (printf "%s-polls-tls" (include "ostler.fullname" .)) -}}
{{- end -}}

{{/*
The ConfigMap with the CAs that runner Pods trust, or empty if they trust the CAs of their image. The name is part of a
Pod's template and never changes. Only its content changes.
*/}}
{{- define "ostler.dispatchCa" -}}
{{- $tls := .Values.web.tls -}}
{{- if $tls.caConfigMap -}}
{{- $tls.caConfigMap -}}
{{- else if or $tls.caBundle (and (include "ostler.ownCA" .) (not .Values.dispatchUrl)) -}}
ostler-polls-ca
{{- else -}}
{{- include "ostler.complete" . -}}
{{- end -}}
{{- end -}}

{{/* DNS names of web's certificate, which are the names of its Service. */}}
{{- define "ostler.pollsTlsNames" -}}
{{- $service := printf "%s-polls" (include "ostler.componentName" (dict "root" . "component" "web")) -}}
{{- $inside := printf "%s.%s.svc" $service .Release.Namespace -}}
{{- join "," (list $inside (printf "%s.cluster.local" $inside) (printf "%s.%s" $service .Release.Namespace)) -}}
{{- end -}}

{{/* "true" if polls are served without TLS, or else empty. */}}
{{- define "ostler.plainPolls" -}}
{{- if or .Values.web.tls.plainPolls (not .Values.web.tls.enabled) -}}
true
{{- end -}}
{{- end -}}
