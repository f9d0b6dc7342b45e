{{/*
Parts of the admission policies for container jobs. rules/pools/hook_names.py has the same names, and
k8s_adapters/hooks/hook_rights.py builds objects that these policies allow.
*/}}

{{/* Prefix of the user name of every ServiceAccount in the runners' namespace. */}}
{{- define "ostler.runnerUsers" -}}
system:serviceaccount:{{ include "ostler.runnersNamespace" . }}:
{{- end -}}

{{/* JSON list of suffixes. The name of a hook Pod is the name of its runner Pod, "-" and a suffix. */}}
{{- define "ostler.hookPodSuffixes" -}}
{{- $all := list "workflow" -}}
{{- range until 32 -}}{{- $all = append $all (printf "step-%d" .) -}}{{- end -}}
{{- $all | toJson -}}
{{- end -}}

{{/* JSON list of suffixes. The name of a Secret of a runner Pod is the name of the runner Pod, "-" and a suffix. */}}
{{- define "ostler.hookSecretSuffixes" -}}
{{- $all := list -}}
{{- range until 8 -}}{{- $all = append $all (printf "secret-%d" .) -}}{{- end -}}
{{- $all | toJson -}}
{{- end -}}

{{/* Regular expression for the name of a container that a runner Pod with a shared workspace gets. */}}
{{- define "ostler.jobContainer" -}}
'^job(-service-[a-z0-9]([-a-z0-9]*[a-z0-9])?|-step-[0-9]{1,4})?$'
{{- end -}}

{{/* The condition that selects requests of runner Pods. */}}
{{- define "ostler.byARunner" -}}
- name: by-a-runner
  expression: >-
    {{- if include "ostler.elevatedNamespace" . }}
    request.userInfo.username.startsWith('system:serviceaccount:' + request.namespace + ':')
    {{- else }}
    request.userInfo.username.startsWith({{ include "ostler.runnerUsers" . | toJson }})
    {{- end }}
    && request.userInfo.username.matches('-[0-9a-f]{8}$')
{{- end -}}

{{/*
Variables of a policy for runner Pods. The API server takes the name and the UID of the Pod from the token, because the
kubelet binds each token to its Pod.
*/}}
{{- define "ostler.hookVariables" -}}
- name: runner
  expression: request.userInfo.username.split(':')[3]
- name: pool
  expression: variables.runner.substring(0, size(variables.runner) - 9)
- name: uid
  expression: >-
    request.userInfo.?extra[?'authentication.kubernetes.io/pod-name'].orValue([]) == [variables.runner]
    && size(request.userInfo.?extra[?'authentication.kubernetes.io/pod-uid'].orValue([])) == 1
    ? request.userInfo.extra['authentication.kubernetes.io/pod-uid'][0] : ''
- name: name
  expression: object.metadata.?name.orValue('')
- name: secrets
  expression: >-
    {{ include "ostler.hookSecretSuffixes" . }}.map(suffix, variables.runner + '-' + suffix)
{{- end -}}

{{/* Regular expression for the name of a size, for example 1500m-4096Mi. */}}
{{- define "ostler.hookSize" -}}
'^[1-9][0-9]{0,9}m-[1-9][0-9]{0,9}Mi$'
{{- end -}}

{{/* Variable with the size that a Role contains, which is empty for a Role of the previous release. */}}
{{- define "ostler.hookSizeOfRole" -}}
- name: size
  expression: string(dyn(object).?rules[?5].?resourceNames[?1].orValue(''))
{{- end -}}

{{/*
Expression that is true if the Role of the caller contains a size. The resource hooksizes exists in Roles only, and the
authorizer of the API server answers for it.
*/}}
{{- define "ostler.hookLimited" -}}
authorizer.group('ostler.dev').resource('hooksizes').namespace(request.namespace).name('limited').check('use').allowed()
{{- end -}}

{{/* Variables with the limits of the containers of a hook Pod. */}}
{{- define "ostler.hookLimits" -}}
# Sidecars run beside the containers. Other init containers run alone, one after the other.
- name: together
  expression: >-
    (object.spec.containers
    + object.spec.?initContainers.orValue([]).filter(c, c.?restartPolicy.orValue('') == 'Always')).map(c,
    c.?resources.?limits.orValue({}))
- name: alone
  expression: >-
    object.spec.?initContainers.orValue([]).filter(c, c.?restartPolicy.orValue('') != 'Always').map(c,
    c.?resources.?limits.orValue({}))
{{- end -}}

{{/* Expressions that compare the limits of a hook Pod with variables.cpu and variables.memory. */}}
{{- define "ostler.hookFitsCpu" -}}
variables.together.map(l, quantity(string(l[?'cpu'].orValue('0'))).asApproximateFloat()).sum()
< variables.cpu.asApproximateFloat() + 0.0005
&& variables.alone.all(l, quantity(string(l[?'cpu'].orValue('0'))).compareTo(variables.cpu) <= 0)
{{- end -}}
{{- define "ostler.hookFitsMemory" -}}
variables.together.map(l, quantity(string(l[?'memory'].orValue('0'))).asApproximateFloat()).sum()
< variables.memory.asApproximateFloat() + 0.5
&& variables.alone.all(l, quantity(string(l[?'memory'].orValue('0'))).compareTo(variables.memory) <= 0)
{{- end -}}

{{/* Variables with the size of a hook Pod in the RunnerPool that is the parameter of a policy. */}}
{{- define "ostler.hookSizeOfPool" -}}
- name: enabled
  expression: dyn(params).spec.?containers.?mode.orValue('') == 'kubernetes'
- name: cpu
  expression: >-
    quantity(string(dyn(params).spec.?containers.?vcpu.orValue(dyn(params).spec.resources.cpu)))
- name: memory
  expression: >-
    dyn(params).spec.?containers.?memoryMib.hasValue()
    ? quantity(string(dyn(params).spec.containers.memoryMib) + 'Mi')
    : quantity(string(dyn(params).spec.resources.memory))
{{- end -}}

{{/* Validations of the metadata of a hook Pod or a Secret. */}}
{{- define "ostler.hookMetadata" -}}
{{- $more := .Values.runners.containers }}
{{- $labels := concat (list "app.kubernetes.io/managed-by" "ostler.dev/hook-of" "ostler.dev/hook-pool") $more.labels }}
{{- $annotations := concat (list "cluster-autoscaler.kubernetes.io/safe-to-evict" "karpenter.sh/do-not-disrupt" "kubernetes.io/limit-ranger" "ostler.dev/spec-digest") $more.annotations }}
{{- if .Values.openshift.enabled }}
{{- /* OpenShift adds these annotations to each Pod before the policy is evaluated. */}}
{{- $annotations = concat $annotations (list "openshift.io/scc" "security.openshift.io/validated-scc-subject-type") }}
{{- end }}
- expression: variables.uid != ''
  messageExpression: >-
    'the token of ' + variables.runner + ' is not bound to the Pod of this name'
  reason: Forbidden
- expression: >-
    object.metadata.?ownerReferences.orValue([]).size() == 1
    && object.metadata.ownerReferences.all(o, o.apiVersion == 'v1' && o.kind == 'Pod' && o.name == variables.runner
    && o.uid == variables.uid && !o.?controller.orValue(false) && !o.?blockOwnerDeletion.orValue(false))
  messageExpression: >-
    variables.name + ' must have one owner: Pod ' + variables.runner + ' with the UID of the caller'
  reason: Forbidden
- expression: >-
    object.metadata.?labels[?'ostler.dev/hook-of'].orValue('') == variables.runner
    && object.metadata.?labels[?'ostler.dev/hook-pool'].orValue('') == variables.pool
  messageExpression: >-
    variables.name + ' must have the labels ostler.dev/hook-of: ' + variables.runner + ' and ostler.dev/hook-pool: '
    + variables.pool
  reason: Forbidden
- expression: object.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('ostler') == 'ostler'
  messageExpression: >-
    variables.name + ' must not have another value of the label app.kubernetes.io/managed-by than ostler'
  reason: Forbidden
- expression: object.metadata.?labels.orValue({}).all(key, key in {{ $labels | toJson }})
  messageExpression: >-
    variables.name + ' has a label that hook objects must not have; the operator can allow more labels in
    runners.containers.labels of the chart'
  reason: Forbidden
- expression: object.metadata.?annotations.orValue({}).all(key, key in {{ $annotations | toJson }})
  messageExpression: >-
    variables.name + ' has an annotation that hook objects must not have; the operator can allow more annotations in
    runners.containers.annotations of the chart'
  reason: Forbidden
- expression: size(object.metadata.?finalizers.orValue([])) == 0
  messageExpression: variables.name + ' must not have a finalizer'
  reason: Forbidden
{{- end -}}
