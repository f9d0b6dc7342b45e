{{/*
Values without a usable default. Every template that needs one of them includes this check, so that one message names all
values that are missing, whichever template Helm renders first.
*/}}
{{- define "ostler.complete" -}}
{{- $missing := list -}}
{{- if not .Values.image.repository -}}
{{- $missing = append $missing "image.repository: it is not set: build the image with `docker build --file compose/Dockerfile --tag REGISTRY/ostler:TAG .`, push it, and set image.repository to REGISTRY/ostler and image.tag to TAG" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- $missing = append $missing "ingress.host: it is not set, and without it the paths would apply to every host of the cluster: name the host to which GitHub sends webhooks" -}}
{{- end -}}
{{- if and .Values.runners.containers.enabled .Values.networkPolicies.enabled (not .Values.networkPolicies.apiServer.addresses) -}}
{{- $missing = append $missing "networkPolicies.apiServer.addresses: it is not set, and runners.containers.enabled needs it: set the blocks of the API server, which the sidecar of a runner Pod must reach" -}}
{{- end -}}
{{- $tls := .Values.web.tls -}}
{{- if and $tls.enabled (or $tls.existingSecret $tls.certManager.issuerRef) (not .Values.dispatchUrl) (not $tls.caBundle) (not $tls.caConfigMap) -}}
{{- $missing = append $missing "web.tls.caBundle or web.tls.caConfigMap: neither is set, and runner Pods need the CA of a certificate that the chart does not create: set the CA, or name a ConfigMap of the runners' namespace" -}}
{{- end -}}
{{- range $group, $own := .Values.workers -}}
{{- if and (kindIs "map" $own) (dig "keda" "enabled" $.Values.worker.keda.enabled $own) (not $.Values.keda.redis.address) -}}
{{- $missing = append $missing (printf "keda.redis.address: it is not set, and workers.%s scales by the length of the queues in Redis: set it to host:port" $group) -}}
{{- end -}}
{{- end -}}
{{- with $missing -}}
{{- fail (printf "%d %s missing: %s" (len .) (ternary "value is" "values are" (eq (len .) 1)) (join "; " .)) -}}
{{- end -}}
{{- end -}}
