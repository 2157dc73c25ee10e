package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SchemeGroupVersion is the group and version of every kind in this package.
func SchemeGroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
}

// AddToScheme adds the kinds that the API server stores.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion(),
		&RDMAPool{}, &RDMAPoolList{},
		&MIGLayout{}, &MIGLayoutList{},
		&VGPUProfile{}, &VGPUProfileList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion())
	return nil
}
