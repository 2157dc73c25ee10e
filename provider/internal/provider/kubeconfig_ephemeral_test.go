package provider

import (
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/echoprovider"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"
	"github.com/hashicorp/terraform-plugin-testing/tfversion"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpufabric.io/provider/internal/apiserver"
)

func testKubeconfig(t *testing.T, s *apiserver.Server) {
	_, err := s.Typed.CoreV1().ServiceAccounts(
		"default",
	).Create(
		t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
		metav1.CreateOptions{},
	)
	must(t, err)
	run := func(t *testing.T, body string, step resource.TestStep) {
		step.Config = as(
			s,
		) + "ephemeral \"gpufabric_kubeconfig\" \"test\" {\n" + body + "\n}\nprovider \"echo\" {\n  data = " +
			"ephemeral.gpufabric_kubeconfig.test\n}\nresource \"echo\" \"test\" {}\n"
		all := factories()
		all["echo"] = func() (tfprotov6.ProviderServer, error) { return echoprovider.NewProviderServer()() }
		resource.UnitTest(
			t,
			resource.TestCase{
				ProtoV6ProviderFactories: all,
				TerraformVersionChecks:   []tfversion.TerraformVersionCheck{tfversion.SkipBelow(tfversion.Version1_10_0)},
				Steps:                    []resource.TestStep{step},
			},
		)
	}
	t.Run("is valid for the service account", func(t *testing.T) {
		run(
			t,
			"namespace = \"default\"\nservice_account = \"robot\"\nexpiration_seconds = 600",
			resource.TestStep{ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownValue("echo.test", tfjsonpath.New("data").AtMapKey("kubeconfig"), knownvalue.StringFunc(func(text string) error {
					config, err := clientcmd.RESTConfigFromKubeConfig([]byte(text))
					must(t, err)
					_, err = kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion()
					return err
				})),
			}},
		)
	})
	t.Run("of a service account that is not there is refused with its name", func(t *testing.T) {
		run(
			t,
			"namespace = \"default\"\nservice_account = \"nobody\"",
			resource.TestStep{ExpectError: words(`serviceaccounts "nobody" not found`)},
		)
	})
	t.Run("shorter than the API server allows is refused with what is allowed", func(t *testing.T) {
		run(
			t,
			"namespace = \"default\"\nservice_account = \"robot\"\nexpiration_seconds = 60",
			resource.TestStep{ExpectError: words("between 600 and 86400")},
		)
	})
}
