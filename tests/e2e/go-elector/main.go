// A replica as in Go: it leads by a Lease with the elector of client-go, and says so.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func say(format string, args ...any) {
	fmt.Printf("%.6f %s\n", float64(time.Now().UnixNano())/1e9, fmt.Sprintf(format, args...))
}

func main() {
	identity := flag.String("identity", "go", "")
	namespace := flag.String("namespace", "default", "")
	name := flag.String("name", "", "")
	lease := flag.Duration("lease", 15*time.Second, "")
	deadline := flag.Duration("deadline", 10*time.Second, "")
	period := flag.Duration("period", 2*time.Second, "")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
			Client:     kubernetes.NewForConfigOrDie(config).CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		},
		ReleaseOnCancel: true,
		LeaseDuration:   *lease,
		RenewDeadline:   *deadline,
		RetryPeriod:     *period,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say("leading") },
			OnStoppedLeading: func() { say("stopped") },
			OnNewLeader:      func(holder string) { say("leader is %s", holder) },
		},
	})
}
