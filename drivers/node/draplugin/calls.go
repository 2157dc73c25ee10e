package draplugin

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// operationOf is what metrics call one of the kubelet's calls; empty for one that they do not know.
func operationOf(method string) string {
	switch method {
	case drapb.DRAPlugin_NodePrepareResources_FullMethodName:
		return preparing
	case drapb.DRAPlugin_NodeUnprepareResources_FullMethodName:
		return unpreparing
	}
	return ""
}

// isOwn says whether it is the plugin's question to itself (Answers): the kubelet calls for claims.
func isOwn(request any) bool {
	prepare, ok := request.(*drapb.NodePrepareResourcesRequest)
	return ok && len(prepare.GetClaims()) == 0
}

// observeCall measures each of the kubelet's calls whole, and counts those that failed as a whole: the helper library reads a call's claims
// from the API server before a Plugin hears of them, which takes longer than all that a Plugin does itself, and nothing else would tell of
// a claim that could not be read.
func (p *Plugin) observeCall(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if status, ok := request.(*registerapi.RegistrationStatus); ok {
		p.registration.told(status)
	}
	operation := operationOf(info.FullMethod)
	if operation == "" || isOwn(request) {
		return handler(ctx, request)
	}
	start := time.Now()
	response, err := handler(ctx, request)
	p.config.Metrics.Observe(operation, "call", start)
	logger := klog.FromContext(ctx).WithValues("operation", operation, "seconds", time.Since(start).Seconds())
	if err != nil {
		reason := "ClaimNotRead"
		if errors.Is(err, errStopped) {
			reason = "Stopped"
		}
		p.config.Metrics.Errors.WithLabelValues(operation, reason).Inc()
		logger.Error(err, "The kubelet's call failed for all of its claims", "reason", reason)
		return response, err
	}
	logger.V(2).Info("The kubelet's call was answered")
	return response, nil
}
