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

// operationOf is the metrics label for one of the kubelet's calls; empty for a call without metrics.
func operationOf(method string) string {
	switch method {
	case drapb.DRAPlugin_NodePrepareResources_FullMethodName:
		return preparing
	case drapb.DRAPlugin_NodeUnprepareResources_FullMethodName:
		return unpreparing
	}
	return ""
}

// isOwn reports whether the call is the plugin's question to itself (Answers). The kubelet calls only with claims.
func isOwn(request any) bool {
	prepare, ok := request.(*drapb.NodePrepareResourcesRequest)
	return ok && len(prepare.GetClaims()) == 0
}

// observeCall measures each of the kubelet's calls as a whole, and counts calls that failed as a whole. The helper library reads
// the claims of a call from the API server before it calls the Plugin. That takes longer than all that a Plugin does itself, and no
// other metric would show a claim that could not be read.
func (p *Plugin) observeCall(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if status, ok := request.(*registerapi.RegistrationStatus); ok {
		p.registration.observe(status)
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
