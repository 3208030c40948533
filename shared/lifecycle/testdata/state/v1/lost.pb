$b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0
machinepool-a*machine was removed from Omni22