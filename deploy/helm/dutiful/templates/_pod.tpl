{{/* Names and labels. */}}
{{- define "dutiful.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "dutiful.labels" -}}
app.kubernetes.io/name: dutiful
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dutiful.metadata" -}}
labels:
  {{- include "dutiful.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Values.image.tag | trunc 63 | quote }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* What every pod has, whatever its command is. */}}
{{- define "dutiful.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  {{- with .Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What every container has, but its arguments, variables, resources and probes. */}}
{{- define "dutiful.container" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [dutiful]
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "dutiful.env" -}}
- name: DUTIFUL_APP
  value: {{ .Values.app | quote }}
- name: DUTIFUL_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.secret.name | quote }}
      key: {{ .Values.database.secret.key | quote }}
{{- if .Values.redis.secret.name }}
- name: DUTIFUL_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.secret.name | quote }}
      key: {{ .Values.redis.secret.key | quote }}
{{- end }}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
