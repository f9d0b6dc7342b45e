{{/*
Parts of the admission policies for the levels of pools. The rules are those of the Kubernetes documentation, "Pod
Security Standards". They are stricter where Ostler never sets a field: no SELinux options and no sysctls.
*/}}

{{/* The condition that selects Pods that a worker or a runner Pod creates. Takes the user name of a worker. */}}
{{- define "ostler.byAWorkerOrRunner" -}}
- name: by-a-worker-or-runner
  expression: >-
    request.userInfo.username == {{ . | toJson }}
    || (request.userInfo.username.startsWith('system:serviceaccount:' + request.namespace + ':')
    && request.userInfo.username.matches('-[0-9a-f]{8}$'))
{{- end -}}

{{/*
Variables with the pool of a Pod, and whether the Pod has a level. Takes the user name of a worker. The pool of a hook
Pod is the pool of the runner Pod that creates it. For a StatefulSet, the Pod is the template.
*/}}
{{- define "ostler.levelVariables" -}}
- name: pod
  expression: "request.resource.resource == 'statefulsets' ? dyn(object).spec.template : dyn(object)"
- name: name
  expression: object.metadata.?name.orValue('')
- name: pool
  expression: >-
    request.userInfo.username == {{ . | toJson }} ? object.metadata.?labels[?'ostler.dev/pool'].orValue('')
    : request.userInfo.username.split(':')[3].substring(0, size(request.userInfo.username.split(':')[3]) - 9)
- name: containers
  expression: variables.pod.spec.containers + variables.pod.spec.?initContainers.orValue([])
- name: volumes
  expression: variables.pod.spec.?volumes.orValue([])
- name: onItsOwn
  expression: >-
    !variables.pod.spec.?hostNetwork.orValue(false) && !variables.pod.spec.?hostPID.orValue(false)
    && !variables.pod.spec.?hostIPC.orValue(false) && variables.volumes.all(v, !has(v.hostPath))
    && variables.pod.spec.?securityContext.?seccompProfile.?type.orValue('RuntimeDefault') != 'Unconfined'
    && variables.pod.spec.?securityContext.?appArmorProfile.?type.orValue('RuntimeDefault') != 'Unconfined'
    && !variables.pod.spec.?securityContext.?seLinuxOptions.hasValue() && size(variables.pod.spec.?securityContext.?sysctls.orValue([])) == 0
    && !variables.pod.spec.?securityContext.?windowsOptions.?hostProcess.orValue(false)
    && variables.pod.metadata.?annotations.orValue({}).all(key,
    !key.startsWith('container.apparmor.security.beta.kubernetes.io/')
    || variables.pod.metadata.annotations[key] == 'runtime/default')
- name: baseline
  expression: >-
    variables.onItsOwn && variables.containers.all(c,
    !c.?securityContext.?privileged.orValue(false)
    && c.?securityContext.?capabilities.?add.orValue([]).all(each, each in ['AUDIT_WRITE', 'CHOWN', 'DAC_OVERRIDE',
    'FOWNER', 'FSETID', 'KILL', 'MKNOD', 'NET_BIND_SERVICE', 'SETFCAP', 'SETGID', 'SETPCAP', 'SETUID', 'SYS_CHROOT'])
    && c.?securityContext.?procMount.orValue('Default') == 'Default'
    && c.?securityContext.?seccompProfile.?type.orValue('RuntimeDefault') != 'Unconfined'
    && c.?securityContext.?appArmorProfile.?type.orValue('RuntimeDefault') != 'Unconfined'
    && !c.?securityContext.?seLinuxOptions.hasValue()
    && !c.?securityContext.?windowsOptions.?hostProcess.orValue(false)
    && c.?ports.orValue([]).all(port, port.?hostPort.orValue(0) == 0)
    && c.?livenessProbe.?httpGet.?host.orValue('') == '' && c.?livenessProbe.?tcpSocket.?host.orValue('') == ''
    && c.?readinessProbe.?httpGet.?host.orValue('') == '' && c.?readinessProbe.?tcpSocket.?host.orValue('') == ''
    && c.?startupProbe.?httpGet.?host.orValue('') == '' && c.?startupProbe.?tcpSocket.?host.orValue('') == ''
    && c.?lifecycle.?postStart.?httpGet.?host.orValue('') == '' && c.?lifecycle.?preStop.?httpGet.?host.orValue('') == ''
    && c.?lifecycle.?postStart.?tcpSocket.?host.orValue('') == ''
    && c.?lifecycle.?preStop.?tcpSocket.?host.orValue('') == '')
- name: restricted
  expression: >-
    variables.baseline && variables.pod.spec.?securityContext.?runAsUser.orValue(1) != 0
    && variables.volumes.all(v, has(v.configMap) || has(v.csi) || has(v.downwardAPI) || has(v.emptyDir)
    || has(v.ephemeral) || has(v.persistentVolumeClaim) || has(v.projected) || has(v.secret))
    && variables.containers.all(c,
    !c.?securityContext.?allowPrivilegeEscalation.orValue(true)
    && 'ALL' in c.?securityContext.?capabilities.?drop.orValue([])
    && c.?securityContext.?capabilities.?add.orValue([]).all(each, each == 'NET_BIND_SERVICE')
    && c.?securityContext.?runAsNonRoot.orValue(variables.pod.spec.?securityContext.?runAsNonRoot.orValue(false))
    && c.?securityContext.?runAsUser.orValue(1) != 0
    && c.?securityContext.?seccompProfile.?type.orValue(variables.pod.spec.?securityContext.?seccompProfile.?type.orValue('')) in
    ['RuntimeDefault', 'Localhost'])
{{- end -}}
