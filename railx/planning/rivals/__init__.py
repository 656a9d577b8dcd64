"""The planners that FlexSP and InfiniPipe are compared with, one module each."""
