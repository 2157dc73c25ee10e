package charts

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

func TestChartObjectsDecodeStrictly(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, rendering := range renderings(t) {
		t.Run(rendering.name, func(t *testing.T) {
			for _, object := range rendering.objects {
				if object.GetAPIVersion() == "monitoring.coreos.com/v1" {
					continue // its Go types need another client library; TestPodMonitorFindsEveryRole reads the four fields of a PodMonitor
				}
				if _, _, err := decoder.Decode([]byte(object.YAML), nil, nil); err != nil {
					t.Errorf("%s: %v\n%s", object.Template, err, object.YAML)
				}
			}
		})
	}
}

func TestSchemaRejectsWrongValuesByName(t *testing.T) {
	for _, test := range []struct {
		name   string
		chart  string
		values map[string]any
		says   []string
	}{
		{"an unknown key", "gpufabric", map[string]any{"computeDomain": map[string]any{"enabled": true}}, []string{"computeDomain"}},
		{"an unknown key in a section", "gpufabric", map[string]any{"hardware": map[string]any{"driverroot": "/"}},
			[]string{"/hardware", "driverroot"}},
		{"a relative driver root", "gpufabric", map[string]any{"hardware": map[string]any{"driverRoot": "run/nvidia"}},
			[]string{"/hardware/driverRoot"}},
		{"a sysfs root of /", "gpufabric", map[string]any{"hardware": map[string]any{"sysfsRoot": "/"}}, []string{"/hardware/sysfsRoot"}},
		{"a directory with a slash at its end", "gpufabric", map[string]any{"kubelet": map[string]any{"root": "/var/lib/kubelet/"}},
			[]string{"/kubelet/root"}},
		{"a host mount that is no path", "gpufabric", map[string]any{"hardware": map[string]any{"hostMounts": []any{"data"}}},
			[]string{"/hardware/hostMounts/0"}},
		{"a word for a boolean", "gpufabric", map[string]any{"gpus": map[string]any{"enabled": "yes"}}, []string{"/gpus/enabled", "boolean"}},
		{"a pull policy of another name", "gpufabric", map[string]any{"image": map[string]any{"pullPolicy": "always"}},
			[]string{"/image/pullPolicy", "Always"}},
		{"a tag with a digest's sign", "gpufabric", map[string]any{"image": map[string]any{"tag": "v1@sha256"}}, []string{"/image/tag"}},
		{"a repository with a tag", "gpufabric", map[string]any{"image": map[string]any{"repository": "ghcr.io/a/b:1.0"}},
			[]string{"/image/repository"}},
		{"a repository with a scheme", "gpufabric", map[string]any{"image": map[string]any{"repository": "https://ghcr.io/a/b"}},
			[]string{"/image/repository"}},
		{"fakefabric's repository with a tag", "fake-hardware", map[string]any{"image": map[string]any{"repository": "ghcr.io/a/b:1.0"}},
			[]string{"/image/repository"}},
		{"the scheduler's repository with a digest", "gpufabric", map[string]any{"scheduler": map[string]any{
			"image": map[string]any{"repository": "ghcr.io/a/b@sha256"}}}, []string{"/scheduler/image/repository"}},
		{"the scheduler's tag with a digest's sign", "gpufabric", map[string]any{"scheduler": map[string]any{
			"image": map[string]any{"tag": "v1@sha256"}}}, []string{"/scheduler/image/tag"}},
		{"a pull secret without a name", "gpufabric", map[string]any{"imagePullSecrets": []any{"registry"}},
			[]string{"/imagePullSecrets/0", "object"}},
		{"no replica", "gpufabric", map[string]any{"controller": map[string]any{"replicas": 0}}, []string{"/controller/replicas", "minimum"}},
		{"a port out of range", "gpufabric", map[string]any{"metrics": map[string]any{"port": 70000}}, []string{"/metrics/port", "maximum"}},
		{"a quantity that is none", "gpufabric", map[string]any{"computeDomains": map[string]any{
			"plugin": map[string]any{"resources": map[string]any{"limits": map[string]any{"memory": "64MB"}}}}},
			[]string{"/computeDomains/plugin/resources/limits/memory"}},
		{"a toleration's operator of another name", "gpufabric",
			map[string]any{"nodePlugins": map[string]any{"tolerations": []any{map[string]any{"operator": "exists"}}}},
			[]string{"/nodePlugins/tolerations/0/operator"}},
		{"more than all unavailable", "gpufabric", map[string]any{"nodePlugins": map[string]any{"maxUnavailable": "101%"}},
			[]string{"/nodePlugins/maxUnavailable"}},
		{"a verbosity below zero", "gpufabric", map[string]any{"log": map[string]any{"verbosity": -1}}, []string{"/log/verbosity", "minimum"}},
		{"an image that is not set", "gpufabric", map[string]any{"image": nil}, []string{"image"}},
		{"a share of no cores", "gpufabric", map[string]any{"gpus": map[string]any{"share": map[string]any{"cores": 0}}},
			[]string{"/gpus/share/cores", "minimum"}},
		{"a form of another name", "gpufabric", map[string]any{"gpus": map[string]any{
			"forms": map[string]any{"default": map[string]any{"form": "half"}}}}, []string{"/gpus/forms/default/form", "shareable"}},
		{"a rule of forms without a selector", "gpufabric",
			map[string]any{"gpus": map[string]any{"forms": map[string]any{"nodes": []any{map[string]any{"form": "whole"}}}}},
			[]string{"/gpus/forms/nodes/0", "nodeSelector"}},
		{"a MIG profile that is none", "gpufabric",
			map[string]any{"gpus": map[string]any{"forms": map[string]any{"default": map[string]any{"form": "mig", "migProfiles": []any{"1g"}}}}},
			[]string{"/gpus/forms/default/migProfiles/0"}},
		{"MIG without profiles", "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true,
			"forms": map[string]any{"default": map[string]any{"form": "mig"}}}}, []string{"gpus.forms.default", "migProfiles"}},
		{"a rule's profiles of another form", "gpufabric",
			map[string]any{"gpus": map[string]any{"enabled": true,
				"forms": map[string]any{"nodes": []any{map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{"a": "b"}},
					"form": "whole", "migProfiles": []any{"1g.10gb"}}}}}},
			[]string{"gpus.forms.nodes[0]", "only form mig"}},
		{"shares without their number", "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true,
			"forms": map[string]any{"default": map[string]any{"form": "shares"}}}}, []string{"gpus.forms.default", "needs shares"}},
		{"form vfio without passthrough", "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true,
			"forms": map[string]any{"default": map[string]any{"form": "vfio"}}}}, []string{"gpus.forms.default", "gpus.passthrough.enabled"}},
		{"a fabric manager without passthrough", "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true,
			"passthrough": map[string]any{"fabricManager": "/run/nvidia-fabricmanager/socket"}}},
			[]string{"gpus.passthrough.fabricManager needs gpus.passthrough.enabled"}},
		{"a fabric manager by TCP", "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true,
			"passthrough": map[string]any{"enabled": true, "fabricManager": "127.0.0.1:6666"}}}, []string{"fabricManager"}},
		{"passthrough without privilege", "gpufabric", map[string]any{"hardware": map[string]any{"privileged": false},
			"gpus": map[string]any{"enabled": true, "passthrough": map[string]any{"enabled": true}}},
			[]string{"gpus.passthrough.enabled needs hardware.privileged"}},
		{"a number of shares for another form", "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true,
			"forms": map[string]any{"default": map[string]any{"form": "shareable", "shares": 4}}}},
			[]string{"gpus.forms.default", "only form shares"}},
		{"more shares than a GPU has", "gpufabric", map[string]any{"gpus": map[string]any{
			"forms": map[string]any{"default": map[string]any{"form": "shares", "shares": 10001}}}},
			[]string{"/gpus/forms/default/shares", "maximum"}},
		{"a MIG mode of another name", "gpufabric", map[string]any{"gpus": map[string]any{"mig": "off"}}, []string{"/gpus/mig", "dynamic"}},
		{"nothing enabled", "gpufabric", map[string]any{"computeDomains": off()}, []string{"nothing is enabled", "computeDomains.enabled"}},
		{"slices without GPUs", "gpufabric", map[string]any{"vgpu": map[string]any{"enabled": true}, "gpus": off()},
			[]string{"vgpu.enabled needs gpus.enabled"}},
		{"all GPUs for a device plugin and for slices", "gpufabric",
			map[string]any{"vgpu": on(), "gpus": map[string]any{"enabled": true, "devicePlugin": []any{"all"}}},
			[]string{"vgpu.enabled and gpus.devicePlugin=[all]"}},
		{"all GPUs and some for a device plugin", "gpufabric",
			map[string]any{"gpus": map[string]any{"enabled": true, "devicePlugin": []any{"all", "GPU-0aa1bb2c"}}},
			[]string{"gpus.devicePlugin=[all, GPU-0aa1bb2c]: all includes every GPU"}},
		{"HAMi-core without its directory", "gpufabric",
			map[string]any{"gpus": on(), "vgpu": map[string]any{"enabled": true, "limits": "hami-core"}},
			[]string{"vgpu.limits=hami-core needs vgpu.limiterDir"}},
		{"two limiters at once", "gpufabric",
			map[string]any{"gpus": on(), "vgpu": map[string]any{"enabled": true, "limits": "library", "limiterDir": "/opt/hami"}},
			[]string{"vgpu.limits=library and vgpu.limiterDir"}},
		{"limits by the driver beside HAMi-core", "gpufabric",
			map[string]any{"gpus": on(), "vgpu": map[string]any{"enabled": true, "limits": "native", "limiterDir": "/opt/hami"}},
			[]string{"vgpu.limits=native and vgpu.limiterDir"}},
		{"limits by the driver without NRI", "gpufabric",
			map[string]any{"gpus": on(), "vgpu": map[string]any{"enabled": true, "limits": "native", "nriSocket": ""}},
			[]string{"vgpu.limits=native needs hardware.privileged and vgpu.nriSocket"}},
		{"the name of the cluster's own scheduler", "gpufabric", map[string]any{"scheduler": map[string]any{"enabled": true,
			"name": "default-scheduler"}},
			[]string{"scheduler.name is default-scheduler"}},
		{"a pool's name with a blank", "gpufabric", map[string]any{"rdma": map[string]any{"enabled": true,
			"config": map[string]any{"configList": []any{map[string]any{"resourceName": "a b"}}}}},
			[]string{"/rdma/config/configList/0/resourceName"}},
		{"devices that move out of a network that is not the node's", "gpufabric",
			map[string]any{"rdma": map[string]any{"enabled": true, "nriSocket": "/run/nri/nri.sock",
				"plugin": map[string]any{"hostNetwork": false}}},
			[]string{"rdma.nriSocket needs rdma.plugin.hostNetwork"}},
		{
			"interfaces of another network namespace", "gpufabric",
			map[string]any{"rdma": map[string]any{"enabled": true, "interfaces": map[string]any{"up": true},
				"plugin": map[string]any{"hostNetwork": false}}},
			[]string{"rdma.interfaces needs rdma.plugin.hostNetwork"},
		},
		{
			"an MTU that IPv6 cannot use", "gpufabric", map[string]any{"rdma": map[string]any{"enabled": true,
				"interfaces": map[string]any{"mtu": 500}}},
			[]string{"/rdma/interfaces/mtu"},
		},
		{"events in words", "gpufabric", map[string]any{"rdma": map[string]any{"enabled": true, "verbsEvents": "yes"}},
			[]string{"/rdma/verbsEvents", "boolean"}},
		{"fake hardware over a top directory", "fake-hardware", map[string]any{"root": "/var"}, []string{"/root"}},
		{"CDI in a top directory", "fake-hardware", map[string]any{"cdiRoot": "/run"}, []string{"cdiRoot"}},
		{"an unknown key of fake hardware", "fake-hardware", map[string]any{"profiles": "gb200-nvl72"}, []string{"profiles"}},
		{"a profile that is an option", "fake-hardware", map[string]any{"profile": "--root=/"}, []string{"/profile"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Render(load(t, test.chart), test.values, Cluster{})
			if err == nil {
				t.Fatal("rendered as if it were right")
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the refusal lacks %q:\n%v", part, err)
				}
			}
		})
	}
}
