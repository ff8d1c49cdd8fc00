// Command temporal measures a Temporal server that is set up as its CLI's
// development server is: one SQLite store in a file, one history shard, all
// services in one process. So that it is not measured by its limits, those on
// rates are raised, and its log is synced at every commit as the others' is. A
// call is a workflow with one activity.
//
// The server is a process of its own, this program with the arguments
// serve PORT FILE.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/membership/static"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"

	"peers/harness"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		port, err := strconv.Atoi(os.Args[2])
		harness.Must(err)
		serve(port, os.Args[3])
		return
	}
	if name := "Temporal on SQLite"; harness.Want(name) {
		measure(name)
	}
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func serve(port int, file string) {
	const ip, active = "127.0.0.1", "active"
	store := &config.SQL{PluginName: sqliteplugin.PluginName, DatabaseName: file,
		ConnectAttributes: map[string]string{"mode": "rwc", "journal_mode": "WAL", "synchronous": "FULL"}}
	harness.Must(sqlite.SetupSchema(store))
	namespace, err := sqlite.NewNamespaceConfig(active, "default", false, nil)
	harness.Must(err)
	harness.Must(sqlite.CreateNamespaces(store, namespace))
	var c config.Config
	c.Global.Membership.MaxJoinDuration = 30 * time.Second
	c.Global.Membership.BroadcastAddress = ip
	c.Persistence.DefaultStore, c.Persistence.VisibilityStore = "file", "file"
	c.Persistence.NumHistoryShards = 1
	c.Persistence.DataStores = map[string]config.DataStore{"file": {SQL: store}}
	c.ClusterMetadata = &cluster.Config{FailoverVersionIncrement: 10, MasterClusterName: active, CurrentClusterName: active,
		ClusterInformation: map[string]cluster.ClusterInformation{active: {Enabled: true, InitialFailoverVersion: 1,
			RPCAddress: fmt.Sprintf("%s:%d", ip, port), ClusterID: uuid.NewString()}}}
	c.DCRedirectionPolicy.Policy = "noop"
	c.Archival.History.State, c.Archival.Visibility.State = "disabled", "disabled"
	c.NamespaceDefaults.Archival.History.State, c.NamespaceDefaults.Archival.Visibility.State = "disabled", "disabled"
	c.PublicClient.HostPort = fmt.Sprintf("%s:%d", ip, port)
	c.Services = map[string]config.Service{}
	hosts := map[primitives.ServiceName]static.Hosts{}
	for _, s := range []primitives.ServiceName{primitives.FrontendService, primitives.HistoryService, primitives.MatchingService, primitives.WorkerService} {
		var service config.Service
		service.RPC.BindOnIP, service.RPC.GRPCPort = ip, freePort()
		if s == primitives.FrontendService {
			service.RPC.GRPCPort, service.RPC.HTTPPort = port, freePort()
		}
		c.Services[string(s)] = service
		hosts[s] = static.SingleLocalHost(fmt.Sprintf("%s:%d", ip, service.RPC.GRPCPort))
	}
	const many = 100_000
	settings := dynamicconfig.StaticClient{
		// What the development server sets.
		dynamicconfig.HistoryCacheHostLevelMaxSize.Key():                 8096,
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key(): 100,
		dynamicconfig.EnableChasm.Key():                                  true,
		dynamicconfig.FrontendPersistenceMaxQPS.Key():                    10_000,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():                     45_000,
		// What is raised.
		dynamicconfig.FrontendRPS.Key():                        many,
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key(): many,
		dynamicconfig.HistoryRPS.Key():                         many,
		dynamicconfig.MatchingRPS.Key():                        many,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():          45_000,
		dynamicconfig.TransferProcessorMaxPollRPS.Key():        many,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():           many,
		dynamicconfig.VisibilityProcessorMaxPollRPS.Key():      many,
	}
	authorizer, err := authorization.GetAuthorizerFromConfig(&c.Global.Authorization)
	harness.Must(err)
	s, err := temporal.NewServer(temporal.WithConfig(&c), temporal.ForServices(temporal.DefaultServices), temporal.WithStaticHosts(hosts),
		temporal.WithLogger(log.NewNoopLogger()), temporal.WithAuthorizer(authorizer), temporal.WithDynamicConfigClient(settings))
	harness.Must(err)
	harness.Must(s.Start())
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // it ends with its parent
	harness.Must(s.Stop())
}

// CallTool is the activity.
func CallTool(_ context.Context, args []byte) ([]byte, error) { return harness.Tool(args), nil }

// Call is the workflow.
func Call(ctx workflow.Context, args []byte) (out []byte, err error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: 10 * time.Minute})
	err = workflow.ExecuteActivity(ctx, CallTool, args).Get(ctx, &out)
	return out, err
}

func measure(name string) {
	dir := harness.Dir()
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	harness.Must(err)
	port := freePort()
	cmd := exec.Command(self, "serve", strconv.Itoa(port), filepath.Join(dir, "temporal.db"))
	in, err := cmd.StdinPipe()
	harness.Must(err)
	out, err := cmd.StdoutPipe()
	harness.Must(err)
	cmd.Stderr = os.Stderr
	harness.Must(cmd.Start())
	defer func() {
		in.Close()
		time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
	}()
	_, err = bufio.NewReader(out).ReadString('\n')
	harness.Must(err)
	logger := sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))
	var c client.Client
	retry(func() (err error) {
		c, err = client.Dial(client.Options{HostPort: fmt.Sprintf("127.0.0.1:%d", port), Logger: logger})
		return err
	})
	defer c.Close()
	const queue = "tools"
	w := worker.New(c, queue, worker.Options{MaxConcurrentActivityExecutionSize: 512, MaxConcurrentWorkflowTaskExecutionSize: 512,
		MaxConcurrentActivityTaskPollers: 16, MaxConcurrentWorkflowTaskPollers: 16})
	w.RegisterWorkflow(Call)
	w.RegisterActivityWithOptions(CallTool, activity.RegisterOptions{Name: "CallTool"})
	harness.Must(w.Start())
	defer w.Stop()
	call := func(ctx context.Context, args []byte) error {
		r, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: queue}, Call, args)
		if err != nil {
			return err
		}
		var result []byte
		return r.Get(ctx, &result)
	}
	retry(func() error { // until every service knows the namespace
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return call(ctx, harness.Args(0, 0))
	})
	harness.All(name, func(caller, n int) error { return call(context.Background(), harness.Args(caller, n)) })
}

func retry(f func() error) {
	for try := 0; ; try++ {
		err := f()
		if err == nil {
			return
		}
		if try == 60 {
			harness.Must(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}
