package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	_, _ = os.Args, time.Now
@BEGIN
	var a, b int64
	fmt.Scan(&a, &b)
	fmt.Println(a + b)
@END
}
