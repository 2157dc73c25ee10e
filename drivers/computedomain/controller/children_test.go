package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/computedomain"
)

func TestADaemonSeesItsDriverWhereTheFlagsSay(t *testing.T) {
	type mount struct {
		host, inside string
		readOnly     bool
	}
	for name, c := range map[string]struct {
		driverRoot string
		hostMounts []string
		root       string
		want       []mount
	}{
		"the node itself":         {"/", nil, "/driver-root", []mount{{"/", "/driver-root", true}}},
		"a driver container":      {"/run/nvidia/driver", nil, "/run/nvidia/driver", []mount{{"/run/nvidia/driver", "/run/nvidia/driver", true}}},
		"within a mount":          {"/var/lib/fake/driver", []string{"/var/lib/fake/"}, "/var/lib/fake/driver", []mount{{"/var/lib/fake", "/var/lib/fake", false}}},
		"beside a mount":          {"/var/lib/fakedriver", []string{"/var/lib/fake"}, "/var/lib/fakedriver", []mount{{"/var/lib/fake", "/var/lib/fake", false}, {"/var/lib/fakedriver", "/var/lib/fakedriver", true}}},
		"with another mount":      {"/", []string{"/opt/x"}, "/driver-root", []mount{{"/opt/x", "/opt/x", false}, {"/", "/driver-root", true}}},
		"a mount that is the one": {"/opt/driver/", []string{"/opt/driver"}, "/opt/driver", []mount{{"/opt/driver", "/opt/driver", false}}},
	} {
		t.Run(name, func(t *testing.T) {
			root, volumes, mounts := hostPaths(c.driverRoot, c.hostMounts)
			byName := map[string]string{}
			for _, volume := range volumes {
				byName[volume.Name] = volume.HostPath.Path
			}
			var got []mount
			for _, m := range mounts {
				got = append(got, mount{byName[m.Name], m.MountPath, m.ReadOnly})
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(mount{})); diff != "" || root != c.root {
				t.Errorf("driver root %s, want %s; mounts (-want +got)\n%s", root, c.root, diff)
			}
		})
	}
}

func TestADaemonsContainerHasWhatTheRoleAsksFor(t *testing.T) {
	set := daemonSet(newDomain("d", 1), Settings{Namespace: namespace, Image: "i", ImagePullPolicy: "Always", ImagePullSecrets: []string{"s"}, DriverRoot: "/opt/driver", DaemonServiceAccount: "a"})
	spec := set.Spec.Template.Spec
	container := spec.Containers[0]
	env := map[string]string{}
	for _, variable := range container.Env {
		env[variable.Name] = variable.ValueFrom.FieldRef.FieldPath
	}
	want := map[string]string{"NODE_NAME": "spec.nodeName", "POD_IP": "status.podIP", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_UID": "metadata.uid"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("environment (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"imex-daemon", "--driver-root=/opt/driver", "-v=0"}, container.Args); diff != "" {
		t.Errorf("arguments (-want +got)\n%s", diff)
	}
	probe := container.ReadinessProbe
	if container.Name != computedomain.DaemonContainer || container.ImagePullPolicy != corev1.PullAlways || spec.ImagePullSecrets[0].Name != "s" || spec.ServiceAccountName != "a" || probe.HTTPGet.Path != "/readyz" {
		t.Errorf("pod %+v", spec)
	}
	if len(set.Name) > 52 {
		t.Errorf("the name %s has %d bytes; with more than 52 the controller's hash makes pods' labels too long", set.Name, len(set.Name))
	}
}
