//go:build gangs

package gangs

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"helm.sh/helm/v3/pkg/chartutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/port"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/simcluster/chart"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/manifests"
	"gpufabric.io/tests/simcluster/pki"
	"gpufabric.io/tests/simcluster/process"
)

// controller is another project's program. It is installed by its own chart and runs as a process beside the cluster, with the
// rights of its service account. It differs from a real installation in its addresses and ports, has no leader election, and
// serves no aggregated API. Its webhooks are called as in a cluster.
type controller struct {
	name, chart string // of the tool, and of its chart in its module
	values      map[string]any
	// certificates means that the test makes the webhooks' certificate, since the program would write its own to a fixed path of
	// the machine. The other programs make theirs themselves.
	certificates bool
	gates        map[string]any
}

const localhost = "127.0.0.1"

// start installs the chart and runs the program; it returns when the program is ready.
func (c controller) start(ctx context.Context, up *fixture.Cluster) (*process.Process, error) {
	program, err := toolchain.Ensure(ctx, c.name)
	if err != nil {
		return nil, err
	}
	module, err := toolchain.ModuleDirectory(ctx, c.name)
	if err != nil {
		return nil, err
	}
	ports, err := port.Free(2)
	if err != nil {
		return nil, err
	}
	objects, err := c.objects(up, filepath.Join(module, "charts", c.chart))
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(up.Dir, c.name)
	certs := filepath.Join(dir, "certificates")
	if err := os.MkdirAll(certs, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of %s: %w", c.name, err)
	}
	parts, err := c.sort(objects, ports[0])
	if err != nil {
		return nil, err
	}
	if c.certificates {
		if err := c.certify(up, certs, parts); err != nil {
			return nil, err
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace()}}
	_, err = up.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("make the namespace of %s: %w", c.name, err)
	}
	if err := up.Manifests.Apply(ctx, c.namespace(), parts.apply...); err != nil {
		return nil, fmt.Errorf("install %s: %w", c.name, err)
	}
	if err := c.configure(filepath.Join(dir, "config.yaml"), certs, parts.config, ports); err != nil {
		return nil, err
	}
	if err := c.writeKubeconfig(ctx, up, filepath.Join(dir, "kubeconfig"), parts.account); err != nil {
		return nil, err
	}
	p, err := process.Start(process.Spec{
		Name: c.name, ClusterDir: up.Dir, LogDir: filepath.Join(up.Dir, "logs"), Path: program[c.name],
		Args: []string{"--config=" + filepath.Join(dir, "config.yaml"), "--kubeconfig=" + filepath.Join(dir, "kubeconfig")},
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fixture.Patience)
	defer cancel()
	if !c.certificates {
		err = p.Await(ctx, period, func(ctx context.Context) error { return c.mount(ctx, up, parts.secret, certs) })
	}
	if err == nil {
		err = p.Await(ctx, period, func(ctx context.Context) error { return answers(ctx, ports[1]) })
	}
	if err != nil {
		p.Kill()
	}
	return p, err
}

func (c controller) namespace() string { return c.name + "-system" }

// objects are the chart's, its CRDs first.
func (c controller) objects(up *fixture.Cluster, dir string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	files, err := filepath.Glob(filepath.Join(dir, "crds", "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		crds, err := manifests.Read(file)
		if err != nil {
			return nil, err
		}
		objects = append(objects, crds...)
	}
	rendered, err := chart.Render(up.Config, chart.Options{Chart: dir, Values: c.values, Name: c.name, Namespace: c.namespace()})
	return append(objects, rendered...), err
}

// parts are a chart's objects by how they are used.
type parts struct {
	apply    []*unstructured.Unstructured
	webhooks []*unstructured.Unstructured // those of apply that call webhooks
	service  string                       // of the webhooks
	secret   string                       // with their certificate
	config   map[string]any               // of the program
	account  string
}

// sort sorts the chart's objects into parts. It leaves out the Deployment, since its image does not run here, and objects that
// need other programs' CRDs or an aggregated API.
func (c controller) sort(objects []*unstructured.Unstructured, webhookPort int) (parts, error) {
	var p parts
	for _, object := range objects {
		switch object.GetKind() {
		case "Deployment":
			p.account, _, _ = unstructured.NestedString(object.Object, "spec", "template", "spec", "serviceAccountName")
			continue
		case "APIService":
			continue
		case "Secret":
			p.secret = object.GetName()
		case "ConfigMap":
			text, _, _ := unstructured.NestedString(object.Object, "data", "controller_manager_config.yaml")
			if err := yaml.Unmarshal([]byte(text), &p.config); err != nil {
				return p, fmt.Errorf("read the configuration of %s: %w", c.name, err)
			}
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			p.webhooks = append(p.webhooks, object)
			p.service = serviceOf(object)
		}
		p.apply = append(p.apply, object)
	}
	for _, object := range p.apply {
		if object.GetKind() == "Service" && object.GetName() == p.service {
			slice, err := expose(object, webhookPort)
			if err != nil {
				return p, err
			}
			// First, so that no webhook is called before its address is known.
			p.apply = append([]*unstructured.Unstructured{slice}, p.apply...)
			break
		}
	}
	if p.account == "" || p.service == "" || p.config == nil {
		return p, fmt.Errorf("the chart of %s lacks a Deployment, a webhook or a configuration: %+v", c.name, p)
	}
	return p, nil
}

func serviceOf(webhooks *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(webhooks.Object, "webhooks")
	for _, entry := range list {
		if webhook, ok := entry.(map[string]any); ok {
			name, _, _ := unstructured.NestedString(webhook, "clientConfig", "service", "name")
			return name
		}
	}
	return ""
}

// expose removes the selector of a Service and makes its EndpointSlice. The API server's gateway to pods maps 10.0.0.1 to
// 127.0.0.1.
func expose(service *unstructured.Unstructured, number int) (*unstructured.Unstructured, error) {
	unstructured.RemoveNestedField(service.Object, "spec", "selector")
	declared, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
	if len(declared) == 0 {
		return nil, errors.New("the webhook's Service has no port")
	}
	first, _ := declared[0].(map[string]any)
	first["targetPort"] = int64(number)
	if err := unstructured.SetNestedSlice(service.Object, declared[:1], "spec", "ports"); err != nil {
		return nil, err
	}
	name, _ := first["name"].(string)
	slice := &unstructured.Unstructured{Object: map[string]any{
		"addressType": string(discoveryv1.AddressTypeIPv4),
		"endpoints":   []any{map[string]any{"addresses": []any{"10.0.0.1"}, "conditions": map[string]any{"ready": true}}},
		"ports":       []any{map[string]any{"name": name, "port": int64(number), "protocol": "TCP"}},
	}}
	slice.SetAPIVersion("discovery.k8s.io/v1")
	slice.SetKind("EndpointSlice")
	slice.SetName(service.GetName())
	slice.SetLabels(map[string]string{discoveryv1.LabelServiceName: service.GetName(), discoveryv1.LabelManagedBy: "gangs"})
	return slice, nil
}

// certify gives the webhooks a certificate of the cluster's authority.
func (c controller) certify(up *fixture.Cluster, dir string, p parts) error {
	authority, err := pki.Load(filepath.Join(up.Dir, "pki"))
	if err != nil {
		return err
	}
	pair, err := authority.Server(p.service, []string{fmt.Sprintf("%s.%s.svc", p.service, c.namespace())}, nil)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return fmt.Errorf("write the certificate of %s: %w", c.name, err)
		}
	}
	for _, object := range p.webhooks {
		list, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
		for _, entry := range list {
			webhook, ok := entry.(map[string]any)
			if !ok {
				continue
			}
			ca := base64.StdEncoding.EncodeToString(authority.CertPEM())
			if err := unstructured.SetNestedField(webhook, ca, "clientConfig", "caBundle"); err != nil {
				return err
			}
		}
		if err := unstructured.SetNestedSlice(object.Object, list, "webhooks"); err != nil {
			return err
		}
	}
	return nil
}

// mount writes the Secret with the program's certificate to the program's directory, as the kubelet would.
func (c controller) mount(ctx context.Context, up *fixture.Cluster, name, dir string) error {
	secret, err := up.Client.CoreV1().Secrets(c.namespace()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(secret.Data["tls.key"]) == 0 {
		return fmt.Errorf("Secret %s is empty", name)
	}
	for file, content := range secret.Data {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			return fmt.Errorf("mount Secret %s: %w", name, err)
		}
	}
	return nil
}

// configure writes the program's configuration: the chart's, with addresses of this machine.
func (c controller) configure(path, certs string, config map[string]any, ports []int) error {
	config["health"] = map[string]any{"healthProbeBindAddress": net.JoinHostPort(localhost, strconv.Itoa(ports[1]))}
	config["metrics"] = map[string]any{"bindAddress": "0"}
	config["webhook"] = map[string]any{"host": localhost, "port": ports[0], "certDir": certs}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	if c.certificates {
		config["internalCertManagement"] = map[string]any{"enable": false}
	}
	if c.gates != nil {
		config["featureGates"] = c.gates
	}
	content, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("write the configuration of %s: %w", c.name, err)
	}
	return os.WriteFile(path, content, 0o600)
}

// writeKubeconfig writes a kubeconfig with a token of the program's service account.
func (c controller) writeKubeconfig(ctx context.Context, up *fixture.Cluster, path, account string) error {
	day := int64(24 * 60 * 60)
	token, err := up.Client.CoreV1().ServiceAccounts(c.namespace()).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a token of %s: %w", account, err)
	}
	access := up.Plane.Access()
	config := clientcmdapi.NewConfig()
	config.Clusters["simcluster"] = &clientcmdapi.Cluster{Server: access.Server, CertificateAuthorityData: access.CA()}
	config.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["simcluster"] = &clientcmdapi.Context{Cluster: "simcluster", AuthInfo: account, Namespace: c.namespace()}
	config.CurrentContext = "simcluster"
	return clientcmd.WriteToFile(*config, path)
}

func answers(ctx context.Context, number int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/readyz", localhost, number), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it is not read
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz: %s", response.Status)
	}
	return nil
}

// kueueValues are the values of the example.
func kueueValues(file string) (map[string]any, error) {
	values, err := chartutil.ReadValuesFile(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return values, nil
}
