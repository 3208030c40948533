
machinepool-a