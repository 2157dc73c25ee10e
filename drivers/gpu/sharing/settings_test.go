package sharing

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

func TestSettingsRefuseLimitOfADeviceOutsideOfTheClaim(t *testing.T) {
	t.Parallel()
	const own, other, made = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000009",
		"MIG-00000000-0000-0000-0000-000000000002"
	for _, c := range []struct {
		name    string
		devices []string
		keys    []string
		want    string
	}{
		{"by index and by UUID", []string{own, made}, []string{"0", made}, ""},
		{"an index too high", []string{own}, []string{"7"}, "Limit[7]: the claim has no such device; allowed are 0 (" + own + ")"},
		{"another GPU", []string{own}, []string{"0", other}, "Limit[" + other + "]: the claim has no such device"},
		{"one device by both names", []string{own}, []string{"0", own}, "device 0 (" + own + ") has a limit already, as 0"},
		{"an instance that is not made yet", []string{own, ""}, []string{made}, ""},
		{"another GPU beside an instance that is not made yet", []string{""}, []string{other}, "allowed are 0, by index or by UUID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := &v1beta1.MpsConfig{DefaultPerDevicePinnedMemoryLimit: map[string]resource.Quantity{}}
			for _, key := range c.keys {
				config.DefaultPerDevicePinnedMemoryLimit[key] = resource.MustParse("1Gi")
			}
			err := Settings{Devices: c.devices, Config: config}.CheckLimits()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
