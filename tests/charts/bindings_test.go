package charts

import (
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// foreign are the roles that the chart binds and does not make, and what each is for.
func foreign() map[string]string {
	return map[string]string{
		"ClusterRole system:auth-delegator": "roles that serve metrics ask whose token a scraper shows and whether it may read /metrics " +
			"(metrics.authentication)",
		"ClusterRole system:kube-scheduler":              "gpufabric-scheduler places pods as kube-scheduler does",
		"ClusterRole system:volume-scheduler":            "gpufabric-scheduler places pods with volumes as kube-scheduler does",
		"Role extension-apiserver-authentication-reader": "gpufabric-scheduler reads by which certificates the API server's proxies are known",
	}
}

// binding is a RoleBinding or ClusterRoleBinding; false for another object.
func binding(t *testing.T, object Object) (of rbacv1.ClusterRoleBinding, is bool) {
	t.Helper()
	if kind := object.GetKind(); kind != "RoleBinding" && kind != "ClusterRoleBinding" {
		return of, false
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &of); err != nil {
		t.Fatal(err)
	}
	return of, true
}

// bound writes a binding as lines "<binding> <scope>: <role> for <account>".
func bound(object Object, of rbacv1.ClusterRoleBinding) (lines []string) {
	scope := "everywhere"
	if object.GetKind() == "RoleBinding" {
		scope = "in " + object.GetNamespace()
	}
	for _, s := range of.Subjects {
		lines = append(lines, fmt.Sprintf("binding %s %s: %s %s for %s %s/%s", object.GetName(), scope, of.RoleRef.Kind, of.RoleRef.Name,
			s.Kind, s.Namespace, s.Name))
	}
	return lines
}

// Only the chart's own service accounts have its rights, and each role that the chart does not make itself has its reason.
func TestBindingsNameOwnAccountsAndListedRoles(t *testing.T) {
	values := everyRight()
	values["metrics"] = map[string]any{"authentication": true}
	objects := renderValues(t, "gpufabric", values)
	made, accounts, used := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, object := range objects {
		switch object.GetKind() {
		case "ClusterRole":
			made["ClusterRole "+object.GetName()] = true
		case "Role":
			made["Role "+object.GetNamespace()+"/"+object.GetName()] = true
		case "ServiceAccount":
			accounts[object.GetNamespace()+"/"+object.GetName()] = true
		}
	}
	known := foreign()
	for _, object := range objects {
		of, is := binding(t, object)
		if !is {
			continue
		}
		role := of.RoleRef.Kind + " " + of.RoleRef.Name
		ours := made[role] || of.RoleRef.Kind == "Role" && made["Role "+object.GetNamespace()+"/"+of.RoleRef.Name]
		if used[role] = true; !ours && known[role] == "" {
			t.Errorf("%s %s binds %s, which the chart does not make: say in this test what it is for", object.GetKind(), object.GetName(), role)
		}
		if len(of.Subjects) == 0 {
			t.Errorf("%s %s binds nobody", object.GetKind(), object.GetName())
		}
		for _, s := range of.Subjects {
			if s.Kind != rbacv1.ServiceAccountKind || !accounts[s.Namespace+"/"+s.Name] {
				t.Errorf("%s %s binds %s %s/%s, which is no service account of the chart", object.GetKind(), object.GetName(), s.Kind,
					s.Namespace, s.Name)
			}
		}
	}
	for role, why := range known {
		if !used[role] {
			t.Errorf("nothing binds %s, which is listed as: %s", role, why)
		}
	}
}

// Kubernetes' own roles let the holder of a stolen token of an account that is bound to them read the token's own content, and the rights
// of others. Policies cannot narrow these requests (the API server exempts them from admission), so the threat model names the second.
func TestTokenReviewRightDoesNotRevealOtherTokens(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprintf("metrics.authentication %t", guarded), func(t *testing.T) {
			live := startServer(t)
			values := everyRight()
			values["metrics"] = map[string]any{"authentication": guarded}
			live.installChart(t, values)
			admin, err := kubernetes.NewForConfig(live.config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
				Name: "tenant"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			made, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "tenant", &authenticationv1.TokenRequest{},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			token := made.Status.Token
			for _, object := range renderValues(t, "gpufabric", values) {
				if object.GetKind() == "ServiceAccount" {
					live.probe(t, object.GetName(), token, guarded)
				}
			}
		})
	}
}

// delegates reports whether an account may review tokens.
func delegates(account string, guarded bool) bool {
	switch account {
	case "gpufabric-scheduler": // as kube-scheduler
		return true
	case "gpufabric-console", "gpufabric-uninstall", "gpufabric-uninstall-check": // they serve no metrics
		return false
	}
	return guarded
}

func (s *server) probe(t *testing.T, account, token string, guarded bool) {
	t.Helper()
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	may := delegates(account, guarded)
	review := func(token string) (*authenticationv1.TokenReview, error) {
		return client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	}
	forged := token[:strings.LastIndex(token, ".")+1] + strings.Repeat("A", 342) // another signature
	for what, text := range map[string]string{"one that it made up": "made-up", "one with another signature": forged} {
		said, err := review(text)
		if !may {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s reviews tokens: %v", account, err)
			}
			continue
		}
		if err != nil || said.Status.Authenticated || said.Status.User.Username != "" {
			t.Errorf("%s has a token reviewed, %s: %+v, %v", account, what, said, err)
		}
	}
	if may {
		// The token's own content: its holder can read that without asking.
		said, err := review(token)
		if err != nil || said.Status.User.Username != "system:serviceaccount:default:tenant" {
			t.Errorf("%s has a good token reviewed: %+v, %v", account, said, err)
		}
	}
	if _, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "tenant", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("%s has a token made for another: %v", account, err)
	}
	_, err = client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:default:tenant",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: "default"}}},
		metav1.CreateOptions{})
	if may && err != nil || !may && !apierrors.IsForbidden(err) {
		t.Errorf("%s asks who may do what: %v, allowed: %t", account, err, may)
	}
	t.Logf("attacker sees with the token of %s: %v", account, err)
}
