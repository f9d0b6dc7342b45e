{{/*
Egress rules of every runner Pod and hook Pod: DNS and the internet, without private addresses.
*/}}
{{- define "ostler.jobEgress" -}}
{{- $all := .Values.networkPolicies -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ $all.dns.namespace }}
    {{- range $all.dns.addresses }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range $all.dns.ports }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
- to:
    {{- $except := concat $all.runners.clusterAddresses $all.runners.except $all.webAddresses }}
    - ipBlock:
        cidr: 0.0.0.0/0
        except:
          - 0.0.0.0/8
          - 10.0.0.0/8
          - 100.64.0.0/10 # carrier-grade NAT, also Pods and nodes of some clouds
          - 127.0.0.0/8
          - 168.63.129.16/32 # Azure: WireServer, which serves metadata and credentials of nodes
          - 169.254.0.0/16 # link-local, used for metadata by most clouds
          - 172.16.0.0/12
          - 192.0.0.0/24
          - 192.168.0.0/16
          - 198.18.0.0/15
          - 224.0.0.0/4
          - 240.0.0.0/4
          {{- range $except }}{{ if not (contains ":" .) }}
          - {{ . }}
          {{- end }}{{ end }}
    - ipBlock:
        cidr: "::/0"
        except:
          - "::/64" # also IPv4 written as IPv6: compatible, mapped and translated
          - "64:ff9b::/104" # this and the following blocks: private ranges of IPv4 behind NAT64
          - "64:ff9b::a00:0/104"
          - "64:ff9b::6440:0/106"
          - "64:ff9b::7f00:0/104"
          - "64:ff9b::a83f:8110/128"
          - "64:ff9b::a9fe:0/112"
          - "64:ff9b::ac10:0/108"
          - "64:ff9b::c000:0/120"
          - "64:ff9b::c0a8:0/112"
          - "64:ff9b::c612:0/111"
          - "64:ff9b::e000:0/100"
          - "64:ff9b::f000:0/100"
          - "64:ff9b:1::/48"
          - "100::/64"
          - "2001::/32" # Teredo
          - "2002::/16" # 6to4
          - "fc00::/7" # unique local
          - "fe80::/10" # link-local
          - "fec0::/10"
          - "ff00::/8"
          {{- range $except }}{{ if contains ":" . }}
          - {{ . | quote }}
          {{- else }}
          - {{ include "ostler.behindNat64" . | quote }}
          {{- end }}{{ end }}
  {{- with $all.runners.publicPorts }}
  ports:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- range $all.runners.allow }}
- to:
    - ipBlock: {cidr: {{ .cidr | quote }}}
  {{- with .ports }}
  ports:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}
