// Package leftover finds what compute domains and claims have left in a simulated cluster. They should leave nothing.
package leftover

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/tests/simcluster/cluster"
)

// places are where drivers write on a node, below the node's directory.
var places = []string{"r/var/run/cdi", "r/var/lib/gpufabric"}

// Find names what refers to any of the domains or claims with these UIDs: DaemonSets, claim templates, pods and node labels in the API,
// and files on the nodes of the cluster in dir.
func Find(ctx context.Context, dir string, client kubernetes.Interface, uids ...string) ([]string, error) {
	var left []string
	add := func(kind string, object metav1.Object) {
		for _, uid := range uids {
			if mentions(object, uid) {
				left = append(left, kind+" "+object.GetName())
			}
		}
	}
	sets, err := client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list DaemonSets: %w", err)
	}
	for i := range sets.Items {
		add("DaemonSet", &sets.Items[i])
	}
	templates, err := client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ResourceClaimTemplates: %w", err)
	}
	for i := range templates.Items {
		add("ResourceClaimTemplate", &templates.Items[i])
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		add("Pod", &pods.Items[i])
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		add("a label of Node", &nodes.Items[i])
	}
	files, err := files(dir, len(nodes.Items), uids)
	return append(left, files...), err
}

// mentions reports whether an object's metadata refers to the UID.
func mentions(object metav1.Object, uid string) bool {
	if strings.Contains(object.GetName(), uid) {
		return true
	}
	for _, values := range []map[string]string{object.GetLabels(), object.GetAnnotations()} {
		for key, value := range values {
			if value == uid || strings.Contains(key, uid) {
				return true
			}
		}
	}
	for _, owner := range object.GetOwnerReferences() {
		if string(owner.UID) == uid {
			return true
		}
	}
	return false
}

// files finds files and directories on nodes whose name or content has one of the UIDs.
func files(dir string, nodes int, uids []string) ([]string, error) {
	var left []string
	for i := range nodes {
		for _, place := range places {
			root := filepath.Join(cluster.NodeDir(dir, i), place)
			err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
				if err != nil {
					return nil //nolint:nilerr // it was removed meanwhile, or the driver has never written here
				}
				content := ""
				if entry.Type().IsRegular() {
					read, _ := os.ReadFile(path) // it may have been removed meanwhile
					content = string(read)
				}
				for _, uid := range uids {
					if strings.Contains(entry.Name(), uid) || strings.Contains(content, uid) {
						left = append(left, path)
					}
				}
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("look for files that are left: %w", err)
			}
		}
	}
	return left, nil
}

// Files are the files that drivers have on the nodes of the cluster in dir, by their paths below it.
func Files(dir string, nodes int) ([]string, error) {
	var files []string
	for i := range nodes {
		for _, place := range places {
			err := filepath.WalkDir(filepath.Join(cluster.NodeDir(dir, i), place), func(path string, entry fs.DirEntry, err error) error {
				if err == nil && !entry.IsDir() { // otherwise it was removed meanwhile
					files = append(files, strings.TrimPrefix(path, dir+"/"))
				}
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("list the files of node %d: %w", i, err)
			}
		}
	}
	return files, nil
}
